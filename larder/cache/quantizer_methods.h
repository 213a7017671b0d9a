// What the two methods share; for quantizer.cc, quanto.cc and hqq.cc only.
#pragma once

#include <cmath>
#include <limits>

#include "larder/cache/quantizer.h"

namespace larder {

void quantize_quanto(const Quantizer& quantizer, const FlatGroups& groups, const float* x,
                     uint8_t* codes, float* scale, float* shift);
void quantize_hqq(const Quantizer& quantizer, const FlatGroups& groups, const float* x,
                  uint8_t* codes, float* scale, float* zero);

inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
  return dtype == DType::kF16 ? f16_to_f32(f32_to_f16(value)) : value;
}

inline float largest(DType dtype) {
  if (dtype == DType::kF16) return 65504.0f;
  return dtype == DType::kBF16 ? bf16_to_f32(0x7F7F) : std::numeric_limits<float>::max();
}

// The nearest number of the dtype that is finite; NaN stays.
inline float saturated_to(DType dtype, double value) {
  const auto most = static_cast<double>(largest(dtype));
  return rounded_to(dtype, static_cast<float>(value > most ? most : value < -most ? -most : value));
}

// `value` as a code, for any float: NaN is 0.
inline uint8_t clamped_code(float value, int32_t max_code) {
  const float rounded = std::nearbyint(value);
  if (!(rounded > 0)) return 0;
  return static_cast<uint8_t>(
      rounded < static_cast<float>(max_code) ? rounded : static_cast<float>(max_code));
}

struct GroupRange {
  float min, max;
  bool finite;
};

inline GroupRange range_of(const float* x, int64_t size, int64_t stride) {
  GroupRange range{x[0], x[0], true};
  for (int64_t i = 0; i < size; ++i) {
    const float value = x[i * stride];
    range.finite = range.finite && std::isfinite(value);
    if (value < range.min) range.min = value;
    if (value > range.max) range.max = value;
  }
  return range;
}

}  // namespace larder
