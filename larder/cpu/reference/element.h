// One element of any float type at any alignment, as f32.
#pragma once

#include <cstdint>
#include <cstring>

#include "larder/tensor/dtype.h"

namespace larder::cpu::reference {

template <class Bits>
Bits read_bits(const void* data, int64_t index) {
  Bits bits;
  std::memcpy(&bits, static_cast<const char*>(data) + index * int64_t{sizeof bits}, sizeof bits);
  return bits;
}

template <class Bits>
void write_bits(void* data, int64_t index, Bits bits) {
  std::memcpy(static_cast<char*>(data) + index * int64_t{sizeof bits}, &bits, sizeof bits);
}

inline float read_element(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF16:
      return f16_to_f32(read_bits<uint16_t>(data, index));
    case DType::kBF16:
      return bf16_to_f32(read_bits<uint16_t>(data, index));
    case DType::kF8E4M3:
      return f8_e4m3_to_f32(read_bits<uint8_t>(data, index));
    case DType::kF8E5M2:
      return f8_e5m2_to_f32(read_bits<uint8_t>(data, index));
    case DType::kF64:
      return static_cast<float>(read_bits<double>(data, index));
    default:
      return read_bits<float>(data, index);
  }
}

inline void write_element(void* data, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF16:
      return write_bits(data, index, f32_to_f16(value));
    case DType::kBF16:
      return write_bits(data, index, f32_to_bf16(value));
    case DType::kF8E4M3:
      return write_bits(data, index, f32_to_f8_e4m3(value));
    case DType::kF8E5M2:
      return write_bits(data, index, f32_to_f8_e5m2(value));
    case DType::kF64:
      return write_bits(data, index, static_cast<double>(value));
    default:
      return write_bits(data, index, value);
  }
}

}  // namespace larder::cpu::reference
