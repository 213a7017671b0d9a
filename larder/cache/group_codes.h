// Quantizing one group of numbers: a scale, an offset, and a code of a few bits for each number.
// Pure functions; what a group is (channels of a token, tokens of a channel) is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "larder/tensor/dtype.h"
#include "larder/tensor/kv_view.h"
#include "larder/tensor/packed_codes.h"

namespace larder {

constexpr int64_t kMaxGroup = 256;  // numbers a group

struct GroupFormat {
  int32_t bits = 4;                   // 2, 3, 4 or 8
  KVForm form = KVForm::kScaleShift;  // or kSymmetric
  DType scale_dtype = DType::kF16;    // f16, bf16 or f32: what scale and shift are stored as
  bool search = false;                // least squares instead of the group's extremes
};

// Both hold numbers that scale_dtype can hold.
struct GroupScale {
  float scale = 0, shift = 0;  // value = scale * code - shift, or (code - 2^(bits-1)) * scale
};

// Fits the group and writes one code a number. Needs: 1 <= x.size() <= kMaxGroup.
// Without search: every number is within half a step of (max - min) / (2^bits - 1) of its value
// (symmetric: of max|x| / (2^(bits-1) - 1)), up to the rounding of scale and shift; a constant
// group comes back within the square of that rounding. With search: the scale that makes the sum of
// squared errors least among candidates that clip the extremes. Numbers past what scale_dtype can
// hold saturate. A group that holds a NaN or an infinity gets the scale NaN, so that all of it, and
// nothing else, reads as NaN.
GroupScale encode_group(std::span<const float> x, const GroupFormat& format, uint8_t* codes);

// The value of a code; each operation is rounded to f32, as attention does it.
inline float decode_value(uint8_t code, const GroupScale& group, const GroupFormat& format) {
  if (format.form == KVForm::kSymmetric)
    return (static_cast<float>(code) - static_cast<float>(1 << (format.bits - 1))) * group.scale;
  return group.scale * static_cast<float>(code) - group.shift;
}

}  // namespace larder
