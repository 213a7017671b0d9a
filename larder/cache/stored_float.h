// One stored number, f32, f16 or bf16, at any alignment; for code that has no kernel set at hand.
#pragma once

#include <cstring>

#include "larder/tensor/dtype.h"

namespace larder {

inline float load_stored(const std::byte* from, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

inline void store_stored(std::byte* to, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const uint16_t bits = dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(to, &bits, sizeof bits);
}

}  // namespace larder
