#include "larder/tensor/encode_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/coded_product.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4};

TEST(EncodeMatrix, SizesAreThoseOfThePicture) {
  // Two panels of 3 groups: 96 + 4 parameters filled up to 128 bytes and 512 a group of codes.
  EXPECT_EQ(coded_bytes(WeightFormat::kInt8, 17, 70), 2 * (128 + 3 * 512));
  EXPECT_EQ(coded_bytes(WeightFormat::kInt4, 17, 70), 2 * (3 * 64 + 3 * 256));
  EXPECT_EQ(coded_bytes(WeightFormat::kInt8, 0, 70), 0);
  // The model that the speed is measured on: 8.5 and 5 bits a weight.
  EXPECT_EQ(coded_bytes(WeightFormat::kInt8, 576, 576) * 16, int64_t{17} * 576 * 576);
  EXPECT_EQ(coded_bytes(WeightFormat::kInt4, 576, 576) * 8, int64_t{5} * 576 * 576);
}

TEST(EncodeMatrix, Int8IsOffByHalfAStep) {
  for (const int64_t k : {1, 31, 64, 100}) {
    const EncodedMatrix matrix(random_floats(19 * k, 5, 2.0f), 19, k, WeightFormat::kInt8);
    const std::vector<float> got = matrix.widened();
    for (int64_t at = 0; at < 19 * k; ++at) {
      const int64_t row = at / k, first = at % k / kCodeGroup * kCodeGroup;
      float most = 0;
      for (int64_t i = first; i < std::min(first + kCodeGroup, k); ++i)
        most = std::max(most, std::fabs(matrix.values()[static_cast<size_t>(row * k + i)]));
      // Half a step, and the largest may be cut by what bf16 took off the scale.
      const float bound = most / 127 * (0.5f + 127 * 0x1p-8f);
      EXPECT_NEAR(got[static_cast<size_t>(at)], matrix.values()[static_cast<size_t>(at)], bound);
    }
  }
}

TEST(EncodeMatrix, Int4IsNoWorseThanItsRangeInFifteenSteps) {
  const int64_t k = 64;
  const EncodedMatrix matrix(random_floats(40 * k, 6), 40, k, WeightFormat::kInt4);
  const std::vector<float> got = matrix.widened();
  for (size_t group = 0; group < got.size() / 32; ++group) {
    const float* x = matrix.values().data() + group * 32;
    const auto [low, high] = std::minmax_element(x, x + 32);
    double error = 0, plain = 0;
    for (size_t i = 0; i < 32; ++i) {
      const double off = double{got[group * 32 + i]} - double{x[i]};
      error += off * off;
      const double step = (double{*high} - double{*low}) / 15;
      const double rounded = std::round((double{x[i]} - double{*low}) / step) * step + double{*low};
      plain += (rounded - double{x[i]}) * (rounded - double{x[i]});
    }
    // bf16 parameters cost a little of what the search gains.
    EXPECT_LE(error, plain * 1.1) << group;
  }
}

TEST(EncodeMatrix, WeightsThatCameOffAGridOfItsKindComeBack) {
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.25f * static_cast<float>(i * 7 % 16) - 2.0f;
  const EncodedMatrix matrix(values, 2, 32, WeightFormat::kInt4);
  EXPECT_EQ(matrix.widened(), values);
}

TEST(EncodeMatrix, GroupsOfOneValueOfZerosAndOfTinyNumbersAreThemselves) {
  for (const WeightFormat format : kFormats) {
    std::vector<float> values(size_t{3} * 32, 0.0f);
    for (size_t i = 32; i < 64; ++i) values[i] = -0.75f;
    for (size_t i = 64; i < 96; ++i) values[i] = 1e-39f;
    const std::vector<float> got = EncodedMatrix(values, 1, 96, format).widened();
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(got[i], 0);
    for (size_t i = 32; i < 64; ++i) EXPECT_NEAR(got[i], -0.75f, 0.75f * 0x1p-8f);
    for (size_t i = 64; i < 96; ++i) EXPECT_NEAR(got[i], 0, 2e-39f);
  }
}

TEST(EncodeMatrix, AGroupThatIsNotFiniteStandsForNaN) {
  for (const WeightFormat format : kFormats) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> values = random_floats(int64_t{2} * 64, 7);
      values[40] = bad;
      const std::vector<float> got = EncodedMatrix(values, 2, 64, format).widened();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i >= 32 && i < 64) << i;
    }
  }
}

TEST(EncodeMatrix, TheBytesDoNotDependOnTheThreads) {
  for (const WeightFormat format : kFormats) {
    const std::vector<float> values = random_floats(int64_t{50} * 40, 8);
    const EncodedMatrix one(values, 50, 40, format), three(values, 50, 40, format, 3);
    EXPECT_EQ(std::memcmp(one.bytes().data(), three.bytes().data(), one.bytes().size()), 0);
  }
}

TEST(EncodeMatrix, EveryFloatTypeIsReadAsWhatItStandsFor) {
  HostAllocator host;
  std::vector<float> values = random_floats(int64_t{16} * 32, 9);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    const Tensor narrow =
        clone(host, TensorView::contiguous(values.data(), DType::kF32, {16, 32}), dtype, "test");
    std::vector<float> exact(values.size());
    copy_into(TensorView::contiguous(exact.data(), DType::kF32, {16, 32}), narrow);
    const EncodedMatrix want(exact, 16, 32, WeightFormat::kInt4);
    std::vector<std::byte> got(want.bytes().size());
    ThreadPool threads(1);
    encode_matrix(narrow, WeightFormat::kInt4, got.data(), threads);
    EXPECT_EQ(std::memcmp(got.data(), want.bytes().data(), got.size()), 0) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace larder::test
