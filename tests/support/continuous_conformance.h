// Runs a case of the conformance kind `continuous`: requests served together from a small pool.
#pragma once

#include "larder/generate/engine.h"
#include "tests/support/conformance_case.h"

namespace larder::test {

// All settings of the case with all schedulers; `model` is the case's.
void check_continuous_case(const ConformanceCase& test, const std::shared_ptr<const Model>& model,
                           Allocator& allocator, Comparison& result);

}  // namespace larder::test
