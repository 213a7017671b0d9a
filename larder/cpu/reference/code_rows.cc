#include <algorithm>
#include <cmath>
#include <limits>

#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {
namespace {

// Elements [0, count) of one group of one row, count <= kCodeGroup.
void code_group(const float* x, int64_t count, CodedRowGroup& out, size_t row) {
  float most = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    most = std::max(most, std::fabs(x[i]));
  }
  constexpr float kLargest = 127 * kCodeBase;
  float scale = most / kLargest;
  const bool zeros = !finite || scale < std::numeric_limits<float>::min();
  const float inverse = zeros ? 0 : kLargest / most;
  if (zeros) scale = finite ? 0 : std::numeric_limits<float>::quiet_NaN();
  int32_t sum = 0, sum_high = 0;
  for (int64_t i = 0; i < kCodeGroup; ++i) {
    // NaN times 0 would not be a code.
    const auto code =
        static_cast<int32_t>(zeros || i >= count ? 0 : std::nearbyint(x[i] * inverse));
    const int32_t high = (code + kCodeBase / 2) >> 7;
    out.high[i / 4][row][i % 4] = static_cast<int8_t>(high);
    out.low[i / 4][row][i % 4] = static_cast<int8_t>(code - kCodeBase * high);
    sum += code;
    sum_high += high;
  }
  out.scale[row] = scale;
  out.high_scale[row] = kCodeBase * scale;
  out.high_sum[row] = out.high_scale[row] * static_cast<float>(sum_high);
  out.offset[row] = -128 * sum;
}

}  // namespace

void code_rows(const Exec&, const CodedRows& out, const TensorView& x) {
  const int64_t groups = code_groups(out.k);
  for (int64_t r = 0; r < out.rows; ++r) {
    const float* row = x.as<float>() + r * x.stride[0];
    for (int64_t g = 0; g < groups; ++g)
      code_group(row + g * kCodeGroup, std::min(kCodeGroup, out.k - g * kCodeGroup),
                 out.group[r / kCodedRows * groups + g], static_cast<size_t>(r % kCodedRows));
  }
}

}  // namespace larder::cpu::reference
