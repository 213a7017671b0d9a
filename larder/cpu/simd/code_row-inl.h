// Activations into int8 codes: plain loops of fixed length, which the compiler makes vectors of for
// the set that includes them. CodedRows and code_rows in kernels.h say what they give, to the bit.
#pragma once

#include <cstdint>

#include "larder/cpu/simd/range_ops.h"

namespace larder::cpu {
namespace {

// One group of one row.
inline void code_group(const float* x, CodedRowGroup& out, int64_t row) {
  constexpr int kCount = static_cast<int>(kCodeGroup);
  constexpr uint32_t kInfinity = 0x7F800000, kSign = 0x80000000;
  uint32_t most_bits = 0;  // of |x|: as whole numbers a NaN is above infinity, and that above all
  for (int i = 0; i < kCount; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]) & ~kSign;
    most_bits = most_bits > bits ? most_bits : bits;
  }
  const float most = __builtin_bit_cast(float, most_bits);
  const bool finite = most_bits < kInfinity;
  constexpr float kLargest = 127.0f * kCodeBase;
  float scale = most / kLargest;
  const bool zeros = !finite || scale < 0x1p-126f;
  const float inverse = zeros ? 0.0f : kLargest / most;
  if (zeros) scale = finite ? 0.0f : __builtin_nanf("");
  // Added to 1.5 * 2^23, a number is rounded to a whole one, ties to even, in the lowest bits.
  constexpr float kShift = 12582912.0f;
  const int32_t keep = finite ? -1 : 0;
  int32_t sum = 0, sum_high = 0;
  int8_t highs[kCount], lows[kCount];
  for (int i = 0; i < kCount; ++i) {
    const int32_t code = (__builtin_bit_cast(int32_t, x[i] * inverse + kShift) -
                          __builtin_bit_cast(int32_t, kShift)) &
                         keep;
    const int32_t high = (code + kCodeBase / 2) >> 7;
    highs[i] = static_cast<int8_t>(high);
    lows[i] = static_cast<int8_t>(code - kCodeBase * high);
    sum += code;
    sum_high += high;
  }
  for (int64_t j = 0; j < kCount / 4; ++j) {
    __builtin_memcpy(out.high[j][row], highs + 4 * j, 4);
    __builtin_memcpy(out.low[j][row], lows + 4 * j, 4);
  }
  out.scale[row] = scale;
  out.high_scale[row] = kCodeBase * scale;
  out.high_sum[row] = kCodeBase * scale * static_cast<float>(sum_high);
  out.offset[row] = -128 * sum;
}

inline void code_row(CodedRowGroup* out, int64_t row, const float* x, int64_t k) {
  for (; k >= kCodeGroup; k -= kCodeGroup, x += kCodeGroup) code_group(x, *out++, row);
  if (k == 0) return;
  float last[kCodeGroup] = {};
  __builtin_memcpy(last, x, static_cast<size_t>(k) * sizeof(float));
  code_group(last, *out, row);
}

}  // namespace
}  // namespace larder::cpu
