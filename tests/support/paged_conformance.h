// Runs one case of the conformance folder paged/ (attention over a block table, computed in
// double).
#pragma once

#include "larder/attention/attention.h"
#include "tests/support/conformance_case.h"

namespace larder::test {

// Attention reads the pools of the case where they lie, in one call for all of its sequences.
void check_paged_case(const ConformanceCase& test, const Kernels& set, AttentionKind kind,
                      Comparison& result);

}  // namespace larder::test
