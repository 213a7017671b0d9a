#include "larder/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/support/temp_folder.h"

namespace larder {
namespace {

using test::error_text;

// 0, 1, 2, ... in a tensor of the test's own.
class Counting {
 public:
  explicit Counting(const Shape& shape) : values_(static_cast<size_t>(shape.count())) {
    std::iota(values_.begin(), values_.end(), 0.0f);
    view = TensorView::contiguous(values_.data(), DType::kF32, shape);
  }
  TensorView view;

 private:
  std::vector<float> values_;
};

float at(const TensorView& view, std::initializer_list<int64_t> index) {
  int64_t offset = 0;
  size_t axis = 0;
  for (const int64_t i : index) offset += i * view.stride[axis++];
  return view.as<float>()[offset];
}

std::vector<float> in_order(const TensorView& view) {
  HostAllocator host;
  const Tensor copy = clone(host, view, DType::kF32, "test");
  return {copy.as<float>(), copy.as<float>() + view.count()};
}

TEST(TensorView, SlicesAndTransposesPointAtTheRightElements) {
  const Counting t(Shape{7, 5, 3});
  const TensorView part = t.view.slice(0, 1, 6).slice(1, 2, 4).transpose(0, 2);
  EXPECT_EQ(part.shape, (Shape{3, 2, 5}));
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      for (int64_t k = 0; k < 5; ++k)
        ASSERT_EQ(at(part, {i, j, k}), static_cast<float>((k + 1) * 15 + (j + 2) * 3 + i));
    }
  }
  EXPECT_FALSE(part.is_contiguous());
  EXPECT_TRUE(t.view.slice(0, 2, 5).is_contiguous());
  EXPECT_TRUE(t.view.slice(0, 3, 3).is_contiguous()) << "empty";
  EXPECT_TRUE(t.view.slice(0, 3, 4).slice(1, 2, 3).is_contiguous())
      << "axes of size 1 do not matter";
}

TEST(TensorView, SliceRefusesRangesOutsideTheAxis) {
  const Counting t(Shape{4, 2});
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{-1, 2}, {3, 2}, {0, 5}, {5, 5}}) {
    EXPECT_NE(error_text([&, b = begin, e = end] {
                t.view.slice(0, b, e);
              }).find("of axis 0 of a tensor [4, 2]"),
              std::string::npos);
  }
  EXPECT_EQ(t.view.slice(0, 4, 4).count(), 0);
}

TEST(TensorView, ReshapeKeepsTheOrderOfElements) {
  const Counting t(Shape{4, 6});
  const auto flat = in_order(t.view);
  for (const Shape& to : {Shape{24}, Shape{2, 2, 6}, Shape{4, 3, 2}, Shape{8, 3}, Shape{1, 24, 1},
                          Shape{2, 1, 2, 2, 1, 3}}) {
    EXPECT_EQ(in_order(t.view.reshape(to)), flat) << to.text();
  }
  EXPECT_EQ(Counting(Shape{1, 1}).view.reshape(Shape{}).count(), 1);
  EXPECT_EQ(Counting(Shape{}).view.reshape(Shape{1, 1, 1}).count(), 1);
}

TEST(TensorView, ReshapeOfStridedViewsWorksOrRefuses) {
  const Counting t(Shape{4, 6, 5});
  const TensorView middle = t.view.slice(1, 1, 5);  // [4, 4, 5], rows of 20 in strides of 30
  EXPECT_EQ(in_order(middle.reshape(Shape{4, 20})), in_order(middle));
  EXPECT_EQ(in_order(middle.reshape(Shape{2, 2, 2, 10})), in_order(middle));
  EXPECT_NE(error_text([&] {
              middle.reshape(Shape{16, 5});
            }).find("without a copy"),
            std::string::npos);
  const TensorView turned = t.view.transpose(0, 1);
  EXPECT_EQ(in_order(turned.reshape(Shape{6, 2, 2, 5})), in_order(turned));
  EXPECT_NE(error_text([&] {
              turned.reshape(Shape{24, 5});
            }).find("without a copy"),
            std::string::npos);
  EXPECT_NE(error_text([&] { t.view.reshape(Shape{7}); }).find("the counts differ"),
            std::string::npos);
}

TEST(TensorView, ReshapeOfABroadcastAxisWorks) {
  const Counting t(Shape{3});
  TensorView repeated = t.view.reshape(Shape{1, 3});
  repeated.shape = Shape{4, 3};
  repeated.stride[0] = 0;
  EXPECT_EQ(in_order(repeated.reshape(Shape{2, 2, 3})),
            (std::vector<float>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_NE(error_text([&] { repeated.reshape(Shape{12}); }).find("without a copy"),
            std::string::npos);
}

TEST(TensorView, ReshapeOfEmptyTensorsWorks) {
  const Counting t(Shape{0, 3});
  EXPECT_EQ(t.view.reshape(Shape{5, 0, 2}).count(), 0);
}

TEST(CopyInto, RefusesDifferentShapes) {
  const Counting a(Shape{2, 3}), b(Shape{3, 2});
  EXPECT_NE(error_text([&] { copy_into(a.view, b.view); }).find("copy of [3, 2] into [2, 3]"),
            std::string::npos);
}

TEST(CopyInto, OddStridesOnBothSides) {
  const Counting from(Shape{7, 9});
  Counting to(Shape{5, 11});
  const TensorView source = from.view.slice(0, 2, 5).slice(1, 1, 8).transpose(0, 1);  // [7, 3]
  const TensorView target = to.view.slice(0, 1, 4).slice(1, 2, 9).transpose(0, 1);    // [7, 3]
  copy_into(target, source);
  EXPECT_EQ(in_order(target), in_order(source));
  EXPECT_EQ(at(to.view, {0, 5}), 5.0f) << "what is beside the target stays";
  EXPECT_EQ(at(to.view, {1, 1}), 12.0f);
}

double converted(DType from, const void* value, DType to) {
  HostAllocator host;
  const auto view = TensorView::contiguous(const_cast<void*>(value), from, Shape{1});
  const Tensor narrow = clone(host, view, to, "test");
  return clone(host, narrow, DType::kF64, "test").as<double>()[0];
}

TEST(CopyInto, FloatsToIntegersTruncateAndSaturate) {
  const auto of = [](double value, DType to) { return converted(DType::kF64, &value, to); };
  EXPECT_EQ(of(-2.9, DType::kI32), -2);
  EXPECT_EQ(of(2.9, DType::kU8), 2);
  EXPECT_EQ(of(300, DType::kU8), 255);
  EXPECT_EQ(of(-1, DType::kU8), 0);
  EXPECT_EQ(of(-129, DType::kI8), -128);
  EXPECT_EQ(of(1e30, DType::kI32), 2147483647);
  EXPECT_EQ(of(-INFINITY, DType::kI64), -9223372036854775808.0);
  EXPECT_EQ(of(INFINITY, DType::kU64), 18446744073709551615.0);
  EXPECT_EQ(of(-1, DType::kU64), 0);
  EXPECT_EQ(of(1.5e19, DType::kU64), 1.5e19);
  EXPECT_EQ(of(NAN, DType::kI64), 0);
  EXPECT_EQ(of(0.5, DType::kBool), 1);
  EXPECT_EQ(of(NAN, DType::kBool), 1);
  EXPECT_EQ(of(-0.0, DType::kBool), 0);
}

TEST(CopyInto, IntegersSaturateAndRoundOnce) {
  const uint64_t largest = ~uint64_t{0};
  EXPECT_EQ(converted(DType::kU64, &largest, DType::kI32), 2147483647);
  EXPECT_EQ(converted(DType::kU64, &largest, DType::kI64), 9223372036854775807.0);
  const int64_t minus = -1;
  EXPECT_EQ(converted(DType::kI64, &minus, DType::kU64), 0);
  EXPECT_EQ(converted(DType::kI64, &minus, DType::kU16), 0);
  // One above the tie between two bf16 values, a distance that f64 cannot hold.
  const int64_t above_tie = (int64_t{1} << 60) + (int64_t{1} << 52) + 1;
  EXPECT_EQ(converted(DType::kI64, &above_tie, DType::kBF16), 0x1p60 + 0x1p53);
  const int64_t below_tie = -((int64_t{1} << 60) + (int64_t{3} << 52) - 1);
  EXPECT_EQ(converted(DType::kI64, &below_tie, DType::kBF16), -(0x1p60 + 0x1p53));
  const int64_t f32_tie = (int64_t{1} << 62) + (int64_t{1} << 38) + 1;
  EXPECT_EQ(converted(DType::kI64, &f32_tie, DType::kF32), 0x1p62 + 0x1p39);
}

TEST(CopyInto, DoublesNarrowInOneRounding) {
  // Just above the tie between 1 and the next bf16: through f32 first it would land on the tie and
  // then go down to even.
  double value = 1 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  EXPECT_EQ(converted(DType::kF64, &value, DType::kBF16), 1 + std::ldexp(1.0, -7));
  value = 1 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40);
  EXPECT_EQ(converted(DType::kF64, &value, DType::kF16), 1 + std::ldexp(1.0, -10));
  value = 464.0 + 1e-9;
  EXPECT_TRUE(std::isnan(converted(DType::kF64, &value, DType::kF8E4M3)));
  value = 1e300;
  EXPECT_EQ(converted(DType::kF64, &value, DType::kBF16), INFINITY);
  value = 1e-300;
  EXPECT_EQ(converted(DType::kF64, &value, DType::kF16), 0);
}

TEST(Tensor, IsAlignedAndGivesItsMemoryBack) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  {
    const Tensor t(tracking, Shape{3, 5}, DType::kF16, "kv");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.view().data) % kAlignment, 0u);
    EXPECT_EQ(tracking.of("kv").live, 30u);
    const Tensor empty(tracking, Shape{0}, DType::kF16, "kv");
    EXPECT_EQ(tracking.of("kv").calls, 1u);
  }
  EXPECT_EQ(tracking.total().live, 0u);
}

}  // namespace
}  // namespace larder
