// Runs a case of the conformance kind `cache` through the padded edge.
#pragma once

#include "larder/cache/padded.h"
#include "larder/cache/registry.h"
#include "tests/support/conformance_case.h"
#include "tests/support/machine.h"

namespace larder::test {

// Why the case cannot run here yet; empty when it can.
std::string cache_case_needs(const Json& json);

void check_cache_case(const ConformanceCase& test, Comparison& result);

}  // namespace larder::test
