// Runs a QuantizedCache case of the conformance kind `cache`: every row as if it were alone, codes
// and parameters from the layer, what update returns from the view.
#pragma once

#include "tests/support/conformance_case.h"

namespace larder::test {

void check_quantized_cache_case(const ConformanceCase& test, Comparison& result);

}  // namespace larder::test
