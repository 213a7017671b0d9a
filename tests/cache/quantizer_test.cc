// The quantizers by themselves: packing, constant and far groups, what is not finite.
#include "larder/cache/quantizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "larder/base/error.h"
#include "larder/cache/quantizer_methods.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Result {
  std::vector<uint8_t> codes;
  std::vector<float> scale, zero, values;
};

Result run(const Quantizer& q, const std::vector<float>& x, int64_t last_dim) {
  const auto count = static_cast<int64_t>(x.size());
  const FlatGroups groups(q, count, last_dim);
  const auto n = static_cast<size_t>(groups.groups);
  Result r{std::vector<uint8_t>(x.size()), std::vector<float>(n), std::vector<float>(n), {}};
  quantize(q, x.data(), count, last_dim, r.codes.data(), r.scale.data(), r.zero.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto g = static_cast<size_t>(groups.of(static_cast<int64_t>(i)));
    r.values.push_back(dequantize(q, r.codes[i], r.scale[g], r.zero[g]));
  }
  return r;
}

// Every method, width, axis and dtype, in groups of 16.
std::vector<Quantizer> all_quantizers() {
  std::vector<Quantizer> all;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int32_t bits : {2, 4})
      for (const int32_t axis : {0, -1})
        all.push_back({QuantMethod::kQuanto, bits, axis, 16, dtype});
    for (const int32_t bits : {1, 2, 3, 4, 8})
      for (const int32_t axis : {0, 1}) all.push_back({QuantMethod::kHqq, bits, axis, 16, dtype});
  }
  return all;
}

std::string name_of(const Quantizer& q) {
  return str(q.method == QuantMethod::kQuanto ? "quanto" : "hqq", " ", q.bits, " axis ", q.axis,
             " ", dtype_name(q.dtype));
}

TEST(Case10, ConstantGroupsComeBack) {
  for (const Quantizer& q : all_quantizers()) {
    for (const float value : {9.0f, 0.0f, -9.0f, 100.0f, 65504.0f, 6e-8f}) {
      const float stored = rounded_to(q.dtype, value);
      for (const float got : run(q, std::vector<float>(64, stored), 4).values) {
        EXPECT_TRUE(std::isfinite(got)) << name_of(q) << " " << value;
        EXPECT_LE(std::fabs(got - stored), 1e-3f * std::max(1.0f, std::fabs(stored)))
            << name_of(q) << " " << value;
      }
    }
  }
}

TEST(Case10, GroupsFarFromZeroStayWithinHalfAStep) {
  std::vector<float> noise = random_floats(64, 3), one_off(64, 100.0f);
  for (float& value : noise) value = 100 + std::clamp(value, -1.0f, 1.0f);
  for (size_t i = 3; i < 64; i += 16) one_off[i] = 100.5f;
  for (const Quantizer& q : all_quantizers()) {
    for (std::vector<float> x : {noise, one_off}) {
      for (float& value : x) value = rounded_to(q.dtype, value);
      const Result r = run(q, x, 4);
      // In 16 bits the parameters round too: numbers near 100 are 1/16 (f16) or 1/2 (bf16) apart,
      // and hqq's zero, about -100 / scale, as much in steps.
      const FlatGroups groups(q, 64, 4);
      for (size_t i = 0; i < 64; ++i) {
        ASSERT_TRUE(std::isfinite(r.values[i])) << name_of(q);
        const auto g = static_cast<size_t>(groups.of(static_cast<int64_t>(i)));
        const float step = r.scale[g];
        const float rounding = q.dtype == DType::kF32   ? 1e-4f
                               : q.dtype == DType::kF16 ? 0.2f
                                                        : 1.6f;
        if (q.method == QuantMethod::kQuanto || q.bits == 8 || q.dtype != DType::kF32) {
          EXPECT_LE(std::fabs(r.values[i] - x[i]), step / 2 + rounding) << name_of(q) << " " << i;
        } else {
          // The optimiser trades a larger error of one value for smaller ones of many.
          EXPECT_LE(std::fabs(r.values[i] - x[i]), 2 * step) << name_of(q) << " " << i;
        }
      }
    }
  }
  const Result r = run({QuantMethod::kQuanto, 4, 0, 16, DType::kF32}, noise, 4);
  for (size_t i = 0; i < 64; ++i) EXPECT_LE(std::fabs(r.values[i] - noise[i]), 0.07f);
}

TEST(Case10, TheLargestAndTheSmallestNumbersStayFinite) {
  for (const Quantizer& q : all_quantizers()) {
    const float most = largest(q.dtype);
    const float tiny = q.dtype == DType::kF16 ? 6e-8f : 1e-40f;
    std::vector<float> wide(64), small(64);
    for (size_t i = 0; i < 64; ++i) {
      wide[i] = i % 3 == 0 ? -most : most;
      small[i] = rounded_to(q.dtype, tiny * static_cast<float>(i % 5));
    }
    for (const float value : run(q, wide, 4).values)
      EXPECT_TRUE(std::isfinite(value)) << name_of(q);
    for (const float value : run(q, small, 4).values)
      EXPECT_LE(std::fabs(value), 1e-3f) << name_of(q);
  }
}

TEST(Case11, AGroupWithNanOrInfinityIsNanAndNoOtherGroupNotices) {
  for (const Quantizer& q : all_quantizers()) {
    for (const float bad : {kNan, kInf, -kInf}) {
      std::vector<float> x = random_floats(64, 11);
      for (float& value : x) value = rounded_to(q.dtype, value);
      const FlatGroups groups(q, 64, 4);
      const int64_t first = groups.start(1);
      // As first, as a middle and as last operand of a running minimum and maximum.
      for (const int64_t at : {0, 7, 15}) {
        std::vector<float> poisoned = x;
        poisoned[static_cast<size_t>(first + at * groups.stride)] = bad;
        const Result r = run(q, poisoned, 4);
        EXPECT_TRUE(std::isnan(r.scale[1]) && std::isnan(r.zero[1])) << name_of(q);
        const Result clean = run(q, x, 4);
        for (size_t i = 0; i < 64; ++i) {
          if (groups.of(static_cast<int64_t>(i)) == 1) {
            EXPECT_EQ(r.codes[i], 0);
            EXPECT_TRUE(std::isnan(r.values[i]));
          } else if (q.method == QuantMethod::kQuanto) {
            EXPECT_EQ(r.codes[i], clean.codes[i]) << name_of(q);
          } else {
            EXPECT_TRUE(std::isfinite(r.values[i])) << name_of(q);
          }
        }
        for (const size_t g : {0u, 2u, 3u}) {
          if (q.method == QuantMethod::kQuanto) {
            EXPECT_EQ(r.scale[g], clean.scale[g]);
            EXPECT_EQ(r.zero[g], clean.zero[g]);
          }
        }
      }
    }
  }
}

TEST(Case11, HqqRoundsOnAsIfTheBadGroupWereNotThere) {
  // Its rule ties the groups of a tensor together, so the oracle is the tensor without group 1.
  const Quantizer q{QuantMethod::kHqq, 4, 1, 16, DType::kF32};
  std::vector<float> x = random_floats(64, 11);
  x[20] = kNan;
  const Result bad = run(q, x, 4);
  x.erase(x.begin() + 16, x.begin() + 32);
  const Result without = run(q, x, 4);
  for (const auto& [g, other] : {std::pair<size_t, size_t>{0, 0}, {2, 1}, {3, 2}}) {
    EXPECT_EQ(bad.scale[g], without.scale[other]);
    EXPECT_EQ(bad.zero[g], without.zero[other]);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(bad.codes[g * 16 + i], without.codes[other * 16 + i]);
  }
}

TEST(Quantizer, QuantizingQuantosOwnValuesAgainChangesNoCode) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int32_t bits : {2, 4}) {
      const Quantizer q{QuantMethod::kQuanto, bits, 0, 64, dtype};
      std::vector<float> x = random_floats(32768, 5);
      for (float& value : x) value = rounded_to(dtype, value);
      const Result once = run(q, x, 64), twice = run(q, once.values, 64);
      EXPECT_EQ(once.codes, twice.codes) << name_of(q);
    }
  }
}

TEST(Quantizer, RefusesWhatAMethodDoesNotHave) {
  const auto text = [](const Quantizer& q) -> std::string {
    try {
      check_quantizer(q, "keys");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(text({QuantMethod::kQuanto, 8, 0, 64}), "keys of 8 bits: quanto has nbits 2 and 4");
  EXPECT_EQ(text({QuantMethod::kQuanto, 4, 1, 64}), "keys with axis 1: quanto has axis 0 and -1");
  EXPECT_EQ(text({QuantMethod::kHqq, 5, 0, 64}), "keys of 5 bits: hqq has nbits 1, 2, 3, 4 and 8");
  EXPECT_EQ(text({QuantMethod::kHqq, 4, -1, 64}), "keys with axis -1: hqq has axis 0 and 1");
  EXPECT_EQ(text({QuantMethod::kHqq, 4, 0, 0}), "keys with q_group_size 0; it must be at least 1");
}

}  // namespace
}  // namespace larder::test
