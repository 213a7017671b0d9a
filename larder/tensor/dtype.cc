#include "larder/tensor/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace larder {
namespace {

struct Names {
  DType dtype;
  std::string_view name, safetensors, torch;
};

constexpr std::array<Names, 15> kNames = {{
    {DType::kF32, "f32", "F32", "float32"},
    {DType::kF16, "f16", "F16", "float16"},
    {DType::kBF16, "bf16", "BF16", "bfloat16"},
    {DType::kF8E4M3, "f8_e4m3", "F8_E4M3", "float8_e4m3fn"},
    {DType::kF8E5M2, "f8_e5m2", "F8_E5M2", "float8_e5m2"},
    {DType::kF64, "f64", "F64", "float64"},
    {DType::kI8, "i8", "I8", "int8"},
    {DType::kU8, "u8", "U8", "uint8"},
    {DType::kI16, "i16", "I16", "int16"},
    {DType::kU16, "u16", "U16", "uint16"},
    {DType::kI32, "i32", "I32", "int32"},
    {DType::kU32, "u32", "U32", "uint32"},
    {DType::kI64, "i64", "I64", "int64"},
    {DType::kU64, "u64", "U64", "uint64"},
    {DType::kBool, "bool", "BOOL", "bool"},
}};

// The small formats share one shape: sign, `exponent_bits` with `bias`, `mantissa_bits`.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
};
constexpr SmallFloat kHalf{5, 10, 15}, kE4M3{4, 3, 7}, kE5M2{5, 2, 15};

float widen(SmallFloat f, uint32_t exponent, uint32_t mantissa, bool negative) {
  const float fraction = static_cast<float>(mantissa);
  const float value = exponent == 0
                          ? std::ldexp(fraction, 1 - f.bias - f.mantissa_bits)
                          : std::ldexp(fraction + static_cast<float>(1u << f.mantissa_bits),
                                       static_cast<int>(exponent) - f.bias - f.mantissa_bits);
  return negative ? -value : value;
}

// |value| in units of the format, rounded to nearest even, without its sign: exponent and mantissa
// as one integer, which carries into the exponent by itself. May exceed the largest finite code;
// the caller decides what that means.
uint32_t narrow_magnitude(SmallFloat f, float value) {
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return 0;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1)
  const int unbiased = std::max(exponent - 1, 1 - f.bias);
  // Exact: scaling by a power of two, then nearbyint in the default rounding mode (to nearest, ties
  // to even).
  const double units =
      std::nearbyint(std::ldexp(static_cast<double>(magnitude), f.mantissa_bits - unbiased));
  const auto whole = static_cast<uint32_t>(units);
  const auto biased = static_cast<uint32_t>(unbiased + f.bias - 1);
  return (biased << f.mantissa_bits) + whole;
}

constexpr uint32_t low_bits(int count) { return (1u << count) - 1u; }

}  // namespace

std::string_view dtype_name(DType dtype) { return kNames[static_cast<size_t>(dtype)].name; }
std::string_view safetensors_dtype_name(DType dtype) {
  return kNames[static_cast<size_t>(dtype)].safetensors;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "half") return DType::kF16;
  if (name == "float") return DType::kF32;
  for (const Names& n : kNames) {
    if (name == n.name || name == n.torch) return n.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const Names& n : kNames) {
    if (name == n.safetensors) return n.dtype;
  }
  return std::nullopt;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) {
    return std::bit_cast<float>((static_cast<uint32_t>(bits & 0x8000u) << 16) | 0x7F800000u |
                                (mantissa << 13));
  }
  return widen(kHalf, exponent, mantissa, (bits & 0x8000u) != 0);
}

uint16_t f32_to_f16(float value) {
  const auto sign = static_cast<uint16_t>((std::bit_cast<uint32_t>(value) >> 16) & 0x8000u);
  if (std::isnan(value)) {
    const uint32_t payload = (std::bit_cast<uint32_t>(value) >> 13) & 0x3FFu;
    return static_cast<uint16_t>(sign | 0x7E00u | payload);
  }
  if (std::fabs(value) >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00u);
  return static_cast<uint16_t>(sign | narrow_magnitude(kHalf, value));
}

float f8_e4m3_to_f32(uint8_t bits) {
  if ((bits & 0x7Fu) == 0x7Fu)
    return std::bit_cast<float>(0x7FC00000u | (static_cast<uint32_t>(bits & 0x80u) << 24));
  return widen(kE4M3, (bits >> 3) & 0xFu, bits & low_bits(3), (bits & 0x80u) != 0);
}

uint8_t f32_to_f8_e4m3(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80u : 0u);
  if (std::isnan(value) || std::fabs(value) > 464.0f) return static_cast<uint8_t>(sign | 0x7Fu);
  return static_cast<uint8_t>(sign | narrow_magnitude(kE4M3, value));
}

float f8_e5m2_to_f32(uint8_t bits) { return f16_to_f32(static_cast<uint16_t>(bits << 8)); }

uint8_t f32_to_f8_e5m2(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80u : 0u);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7Fu);
  if (std::fabs(value) >= 61440.0f) return static_cast<uint8_t>(sign | 0x7Cu);
  return static_cast<uint8_t>(sign | narrow_magnitude(kE5M2, value));
}

}  // namespace larder
