// Shapes in 64 bits, and the arithmetic on sizes that refuses to wrap.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "larder/base/error.h"

namespace larder {

constexpr int kMaxRank = 8;

// a * b for sizes and offsets; throws Error naming both factors when the product does not fit in 64
// bits (cases 25).
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    fail("size ", a, " x ", b, " does not fit in 64 bits");
  return product;
}

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) fail("size ", a, " + ", b, " does not fit in 64 bits");
  return sum;
}

// a / b, rounded up.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The sizes of a tensor's axes. Rank 0 is a scalar with one element; a zero dimension is allowed.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims)
      : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  // Throws for a rank above kMaxRank, a negative dimension, or a product past 64 bits, even beside
  // a zero.
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis)]; }
  int64_t count() const { return count_; }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  bool operator==(const Shape& other) const;
  std::string text() const;  // "[2, 3]"

 private:
  int rank_ = 0;
  std::array<int64_t, kMaxRank> dims_{};
  int64_t count_ = 1;
};

}  // namespace larder
