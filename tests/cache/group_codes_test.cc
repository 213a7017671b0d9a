#include "larder/cache/group_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> round_trip(const std::vector<float>& x, const GroupFormat& format) {
  std::vector<uint8_t> codes(x.size());
  const GroupScale group = encode_group(x, format, codes.data());
  std::vector<float> result(x.size());
  for (size_t i = 0; i < x.size(); ++i) result[i] = decode_value(codes[i], group, format);
  return result;
}

float worst(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

double squared(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

std::vector<GroupFormat> all_formats(bool search) {
  std::vector<GroupFormat> formats;
  for (const int32_t bits : {2, 3, 4, 8})
    for (const KVForm form : {KVForm::kScaleShift, KVForm::kSymmetric})
      for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32})
        formats.push_back({bits, form, dtype, search});
  return formats;
}

TEST(GroupCodes, EveryNumberIsWithinHalfAStep) {
  for (const GroupFormat& format : all_formats(false)) {
    for (const size_t count : {1u, 7u, 16u, 63u, 64u}) {
      const std::vector<float> x = random_floats(static_cast<int64_t>(count), count, 3);
      const auto [low, high] = std::minmax_element(x.begin(), x.end());
      const bool symmetric = format.form == KVForm::kSymmetric;
      const float levels = static_cast<float>((1 << format.bits) - 1);
      const float most = std::max(std::fabs(*low), std::fabs(*high));
      const float step = symmetric ? most / static_cast<float>((1 << (format.bits - 1)) - 1)
                                   : (*high - *low) / levels;
      // bf16 keeps 8 bits of scale and shift, f16 eleven.
      const float rounding = format.scale_dtype == DType::kF32   ? 1e-6f
                             : format.scale_dtype == DType::kF16 ? 0x1p-10f
                                                                 : 0x1p-7f;
      EXPECT_LE(worst(x, round_trip(x, format)), step / 2 + 2 * most * rounding)
          << format.bits << " bits of " << count << ", symmetric " << symmetric;
    }
  }
}

TEST(GroupCodes, SearchNeverHasMoreSquaredErrorThanTheExtremes) {
  for (GroupFormat format : all_formats(false)) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      std::vector<float> x = random_floats(64, seed);
      x[5] *= 4;  // an outlier to clip
      const double plain = squared(x, round_trip(x, format));
      format.search = true;
      EXPECT_LE(squared(x, round_trip(x, format)), plain * (1 + 1e-5));
      format.search = false;
    }
  }
}

TEST(GroupCodes, Case10_ConstantGroupsComeBack) {
  for (const bool search : {false, true}) {
    for (const GroupFormat& format : all_formats(search)) {
      for (const float value : {9.0f, 0.0f, -9.0f, 9.1f, -0.3f, 1234.5f}) {
        const std::vector<float> x(16, value);
        const float bound = format.form == KVForm::kSymmetric && format.scale_dtype != DType::kF32
                                ? std::fabs(value) * 0x1p-7f
                                : 1e-3f * std::max(1.0f, std::fabs(value) / 10);
        EXPECT_LE(worst(x, round_trip(x, format)), bound)
            << value << " in " << format.bits << " bits of " << dtype_name(format.scale_dtype)
            << " search " << search;
      }
    }
  }
}

TEST(GroupCodes, Case10_DataFarFromZeroKeepsItsSteps) {
  std::vector<float> noise = random_floats(16, 3, 0.4f);
  for (float& x : noise) x = 100 + std::clamp(x, -1.0f, 1.0f);
  noise[0] = 99, noise[1] = 101;
  EXPECT_LE(worst(noise, round_trip(noise, {4})), 0.07f);
  std::vector<float> one_apart(16, 100.0f);
  one_apart[7] = 100.5f;
  EXPECT_LE(worst(one_apart, round_trip(one_apart, {4})), 1e-3f);
}

TEST(GroupCodes, Case10_ExtremeNumbersStayFinite) {
  for (const bool search : {false, true}) {
    for (const GroupFormat& format : all_formats(search)) {
      for (const float value : {65504.0f, 1e30f, 3e38f, 1e-40f, 6e-8f}) {
        std::vector<float> x(16, value);
        x[3] = -value, x[4] = 0;
        for (const float y : round_trip(x, format)) EXPECT_TRUE(std::isfinite(y)) << value;
        std::fill(x.begin(), x.end(), value);
        for (const float y : round_trip(x, format)) EXPECT_TRUE(std::isfinite(y)) << value;
      }
    }
  }
  const std::vector<float> largest(16, 65504.0f);
  EXPECT_EQ(round_trip(largest, {4}), largest);
}

TEST(GroupCodes, Case11_ANonFiniteNumberMakesItsGroupNaNAndNothingElse) {
  for (const bool search : {false, true}) {
    for (const GroupFormat& format : all_formats(search)) {
      for (const float bad : {kNaN, -kNaN, kInf, -kInf}) {
        for (const size_t at : {0u, 1u, 9u, 15u}) {
          std::vector<float> x = random_floats(16, 1);
          x[at] = bad;
          for (const float y : round_trip(x, format)) EXPECT_TRUE(std::isnan(y));
        }
      }
    }
  }
}

TEST(GroupCodes, SmallIntegersAreExactWhereTheStepDividesThem) {
  std::vector<float> x(16);
  std::iota(x.begin(), x.end(), -4.0f);
  EXPECT_EQ(round_trip(x, {4}), x);
}

}  // namespace
}  // namespace larder::test
