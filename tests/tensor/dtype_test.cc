#include "larder/tensor/dtype.h"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "larder/base/str.h"

namespace larder {
namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint16_t code_of(Eigen::half h) { return h.x; }
uint16_t code_of(Eigen::bfloat16 b) { return b.value; }

// Values where rounding goes wrong if it does anywhere: every 16-bit pattern as the upper half of
// an f32, beside lower halves at, below and above the ties of bf16, f16 and the f8 types.
template <class Check>
void for_tricky_floats(Check check) {
  std::vector<uint32_t> lows = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  for (uint32_t bit = 0; bit < 16; ++bit) {
    lows.push_back(1u << bit);
    lows.push_back((1u << bit) | 1u);
    lows.push_back(((1u << bit) - 1u) & 0xFFFFu);
    lows.push_back((0xFFFFu << bit) & 0xFFFFu);
  }
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : lows) check(from_bits(high << 16 | low));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) check(from_bits(random()));
}

TEST(Bf16, AllCodesWidenAsEigenWidensThem) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float got = bf16_to_f32(static_cast<uint16_t>(code));
    const float want =
        static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(static_cast<uint16_t>(code)));
    ASSERT_EQ(bits_of(got), bits_of(want)) << code;
    if (!std::isnan(got)) {
      ASSERT_EQ(f32_to_bf16(got), code);
    }
  }
}

TEST(Bf16, NarrowingRoundsToNearestEvenAsEigenDoes) {
  size_t wrong = 0;
  for_tricky_floats([&](float value) {
    const uint16_t got = f32_to_bf16(value);
    if (std::isnan(value)) {
      wrong += !std::isnan(bf16_to_f32(got));
    } else {
      wrong += got != code_of(Eigen::bfloat16(value));
    }
  });
  EXPECT_EQ(wrong, 0u);
}

TEST(Case33, NarrowingToBf16KeepsANaNANaN) {
  for (const uint32_t nan : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0x7F80FFFFu, 0x7FC00000u}) {
    const uint16_t code = f32_to_bf16(from_bits(nan));
    EXPECT_TRUE(std::isnan(bf16_to_f32(code))) << nan;
    EXPECT_EQ(code >> 15, nan >> 31) << "the sign stays";
  }
  EXPECT_EQ(f32_to_bf16(from_bits(0x7F7FFFFF)), 0x7F80) << "the largest f32 rounds to infinity";
}

TEST(F16, AllCodesWidenAsEigenWidensThem) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float got = f16_to_f32(static_cast<uint16_t>(code));
    const float want =
        static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(static_cast<uint16_t>(code)));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << code;
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(got)))) << code;
    } else {
      ASSERT_EQ(bits_of(got), bits_of(want)) << code;
      ASSERT_EQ(f32_to_f16(got), code);
    }
  }
  EXPECT_EQ(f16_to_f32(0x0001), 5.9604644775390625e-08f);
}

TEST(F16, NarrowingRoundsToNearestEvenAsEigenDoes) {
  size_t wrong = 0;
  for_tricky_floats([&](float value) {
    const uint16_t got = f32_to_f16(value);
    if (std::isnan(value)) {
      wrong += !std::isnan(f16_to_f32(got));
    } else {
      wrong += got != code_of(Eigen::half(value));
    }
  });
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-1e-10f), 0x8000);
}

// The f8 formats have no oracle in Eigen; their codes are few enough to search.
struct F8 {
  const char* name;
  float (*widen)(uint8_t);
  uint8_t (*narrow)(float);
  int exponent_bits, mantissa_bits, bias;
  float overflow_above;   // larger magnitudes have no nearest finite code
  uint8_t overflow_code;  // what they become
};
const std::array<F8, 2> kF8 = {{
    {"e4m3fn", f8_e4m3_to_f32, f32_to_f8_e4m3, 4, 3, 7, 464.0f, 0x7F},
    {"e5m2", f8_e5m2_to_f32, f32_to_f8_e5m2, 5, 2, 15, std::nextafter(61440.0f, 0.0f), 0x7C},
}};

// The value of a finite code by the definition of the format.
double by_definition(const F8& f, uint32_t code) {
  const uint32_t mantissa = code & ((1u << f.mantissa_bits) - 1);
  const int exponent = static_cast<int>((code & 0x7Fu) >> f.mantissa_bits);
  const double fraction = static_cast<double>(mantissa) / (1 << f.mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - f.bias)
                                         : std::ldexp(1 + fraction, exponent - f.bias);
  return code & 0x80u ? -magnitude : magnitude;
}

bool special(const F8& f, uint32_t code) {
  return f.exponent_bits == 4 ? (code & 0x7Fu) == 0x7Fu : (code & 0x7Fu) >= 0x7Cu;
}

TEST(F8Types, All256CodesWidenByTheDefinitionAndComeBack) {
  for (const F8& f : kF8) {
    for (uint32_t code = 0; code < 256; ++code) {
      const float got = f.widen(static_cast<uint8_t>(code));
      if (special(f, code)) {
        const bool infinity = f.exponent_bits == 5 && (code & 0x7Fu) == 0x7Cu;
        EXPECT_EQ(std::isinf(got), infinity) << f.name << code;
        EXPECT_EQ(std::isnan(got), !infinity) << f.name << code;
        if (!infinity) {
          EXPECT_TRUE(std::isnan(f.widen(f.narrow(got))));
        } else {
          EXPECT_EQ(f.narrow(got), code);
        }
        continue;
      }
      EXPECT_EQ(got, by_definition(f, code)) << f.name << " " << code;
      EXPECT_EQ(std::signbit(got), code >= 0x80);
      EXPECT_EQ(f.narrow(got), code) << f.name;
    }
  }
  EXPECT_EQ(f8_e4m3_to_f32(0x7E), 448);
  EXPECT_TRUE(std::isnan(f8_e4m3_to_f32(0x7F)));
}

// The nearest finite code by comparison with all of them; the even one of two that are equally
// near.
uint8_t nearest_code(const std::vector<double>& magnitudes, double value) {
  const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), value);
  if (above == magnitudes.end()) return static_cast<uint8_t>(magnitudes.size() - 1);
  const auto high = static_cast<uint8_t>(above - magnitudes.begin());
  if (high == 0 || *above == value) return high;
  const double up = *above - value, down = value - *(above - 1);
  return up < down || (up == down && high % 2 == 0) ? high : static_cast<uint8_t>(high - 1);
}

TEST(F8Types, NarrowingRoundsToNearestEven) {
  for (const F8& f : kF8) {
    std::vector<double> magnitudes;
    for (uint32_t code = 0; code < 0x80 && !special(f, code); ++code)
      magnitudes.push_back(by_definition(f, code));
    const auto check = [&](float value) {
      const uint8_t got = f.narrow(value);
      const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
      if (std::isnan(value)) return std::isnan(f.widen(got));
      const double magnitude = std::fabs(static_cast<double>(value));
      const uint8_t code = magnitude > static_cast<double>(f.overflow_above)
                               ? f.overflow_code
                               : nearest_code(magnitudes, magnitude);
      return got == (sign | code);
    };
    size_t wrong = 0;
    for_tricky_floats([&](float value) { wrong += !check(value); });
    EXPECT_EQ(wrong, 0u) << f.name;
    for (size_t i = 0; i + 1 < magnitudes.size(); ++i) {
      const auto tie = static_cast<float>((magnitudes[i] + magnitudes[i + 1]) / 2);
      EXPECT_TRUE(check(tie)) << f.name << " " << tie;
      EXPECT_TRUE(check(-std::nextafter(tie, 0.0f)));
      EXPECT_TRUE(check(std::nextafter(tie, 1e9f)));
    }
  }
  EXPECT_EQ(f32_to_f8_e4m3(464.0f), 0x7E);
  EXPECT_EQ(f32_to_f8_e4m3(std::nextafter(464.0f, 1e9f)), 0x7F);
  EXPECT_EQ(f32_to_f8_e5m2(61440.0f), 0x7C);
}

TEST(DTypeNames, EveryNameReadsBack) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_safetensors(safetensors_dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("torch.bfloat16"), DType::kBF16);
  EXPECT_EQ(dtype_from_name("float32"), DType::kF32);
  EXPECT_EQ(dtype_from_name("half"), DType::kF16);
  EXPECT_EQ(dtype_from_name("bf17"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("bf16"), std::nullopt);
}

}  // namespace
}  // namespace larder
