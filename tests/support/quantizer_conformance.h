// Runs a case of the conformance kind `quantizer`.
#pragma once

#include "larder/cache/quantizer.h"
#include "tests/support/conformance_case.h"

namespace larder::test {

// The place of each element's code in the reference's grouped layout: rows of a group, or columns.
std::vector<int64_t> grouped_places(const Quantizer& quantizer, int64_t count, int64_t last_dim);

// Codes of a quantized tensor against the reference's: notes more than `flip_tolerance` of them off
// by one, and any other difference. Gives which elements agree.
std::vector<bool> check_codes(const std::string& what, std::span<const uint8_t> codes,
                              std::span<const int64_t> places, std::span<const int64_t> expected,
                              double flip_tolerance, Comparison& result);

// What "within 1e-3 of the largest" means for values of a dtype that were quantized twice.
double relative_tolerance(DType dtype);

void check_quantizer_case(const ConformanceCase& test, Comparison& result);

}  // namespace larder::test
