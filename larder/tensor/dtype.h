// Element types and their exact conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace larder {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF64,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool,
};

constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    default:
      return 1;
  }
}

// The short name that flags and reports use: "f32", "bf16", "f8_e4m3", ...
std::string_view dtype_name(DType dtype);
// Also takes the ecosystem's spellings: "float32", "torch.bfloat16", "half".
std::optional<DType> dtype_from_name(std::string_view name);
// The names of the safetensors format: "F32", "BF16", "F8_E4M3", "BOOL", ...
std::string_view safetensors_dtype_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

constexpr bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF64 || dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

// ---- one value; narrowing rounds to nearest even and keeps a NaN a NaN (cases 33) ----
constexpr float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float f8_e4m3_to_f32(
    uint8_t bits);  // OCP "fn": no infinity, 0x7F and 0xFF are NaN, the largest is 448
uint8_t f32_to_f8_e4m3(
    float value);  // past 464 (448 and half a step): NaN, as PyTorch's float8_e4m3fn
float f8_e5m2_to_f32(uint8_t bits);
uint8_t f32_to_f8_e5m2(float value);  // past the largest: infinity

}  // namespace larder
