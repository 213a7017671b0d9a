#include "larder/tensor/shape.h"

#include <gtest/gtest.h>

#include <vector>

#include "larder/tensor/arena.h"
#include "tests/support/temp_folder.h"

namespace larder {
namespace {

using test::error_text;

TEST(Case25, CountsAndOffsetsPast32BitsAreExact) {
  EXPECT_EQ((Shape{131072, 16, 8, 128}).count(), int64_t{131072} * 16384);
  EXPECT_EQ(checked_mul(131072, 16384), 2147483648);
  EXPECT_EQ((Shape{65536, 32768}).count(), 2147483648);
  EXPECT_EQ((Shape{1048576, 8, 128, 32}).count(), 34359738368);
  EXPECT_EQ((TensorView{nullptr, DType::kF32, Shape{1048576, 8, 128, 32}, {}}).byte_size(),
            137438953472);
  EXPECT_EQ(Arena::padded(2147483648, DType::kF32), size_t{8589934592});
}

TEST(Case25, StridesAndSlicesPast32BitsAreExact) {
  // The addresses are computed and compared; nothing is read.
  char base = 0;
  const auto blocks = TensorView::contiguous(&base, DType::kF32, Shape{262144, 16, 8, 128});
  EXPECT_EQ(blocks.stride[0], 16384);
  const auto address = reinterpret_cast<uintptr_t>(&base);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.slice(0, 131072, 131073).data) - address,
            uintptr_t{2147483648} * 4);
  const auto rows = TensorView::contiguous(&base, DType::kBF16, Shape{131072, 32768});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.slice(0, 65536, 65537).data) - address,
            uintptr_t{2147483648} * 2);
  EXPECT_EQ((TensorView::contiguous(nullptr, DType::kF32, Shape{2, 1048576, 8, 128, 32}).stride[0]),
            34359738368);
}

TEST(Case25, AProductPast64BitsIsRefusedBeforeAllocation) {
  const int64_t big = int64_t{1} << 32;
  EXPECT_NE(error_text([&] {
              Shape shape({big, big});
            }).find("does not fit in 64 bits"),
            std::string::npos);
  EXPECT_NE(error_text([&] {
              Shape shape({big, big, 0});
            }).find("does not fit"),
            std::string::npos);
  EXPECT_NE(error_text([&] {
              Shape shape({0, big, big});
            }).find("does not fit"),
            std::string::npos);
  EXPECT_NE(error_text([] { Arena::padded(INT64_MAX / 2, DType::kF32); }).find("x 4 does not fit"),
            std::string::npos);
  HostAllocator host;
  TrackingAllocator tracking(host);
  const Shape elements{int64_t{1} << 62};
  EXPECT_NE(error_text([&] { Tensor t(tracking, elements, DType::kF32, "t"); }).find("4611686018"),
            std::string::npos);
  EXPECT_EQ(tracking.total().calls, 0u);
  EXPECT_EQ(checked_add(INT64_MAX - 1, 1), INT64_MAX);
  EXPECT_NE(error_text([] { checked_add(INT64_MAX, 1); }).find("does not fit"), std::string::npos);
  EXPECT_NE(error_text([] { checked_mul(INT64_MIN, -1); }).find("does not fit"), std::string::npos);
}

TEST(Shape, RefusesNegativeDimensionsAndTooManyAxes) {
  EXPECT_NE(error_text([] {
              Shape shape({2, -1});
            }).find("dimension -1 is negative"),
            std::string::npos);
  EXPECT_NE(error_text([] {
              Shape shape({1, 1, 1, 1, 1, 1, 1, 1, 1});
            }).find("rank 9"),
            std::string::npos);
  const std::vector<int64_t> many(100'000, 1);
  EXPECT_NE(error_text([&] { Shape shape(many); }).find("rank 100000"), std::string::npos);
}

TEST(Shape, ScalarsAndZeroDimensionsCount) {
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ(Shape{}.rank(), 0);
  EXPECT_EQ((Shape{3, 0, 5}).count(), 0);
  EXPECT_EQ((Shape{2, 3}).text(), "[2, 3]");
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_TRUE((Shape{2, 3}) == (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 1}));
}

}  // namespace
}  // namespace larder
