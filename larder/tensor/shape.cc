#include "larder/tensor/shape.h"

#include <algorithm>

namespace larder {

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  if (rank_ > kMaxRank) fail("a shape of rank ", rank_, " (at most ", kMaxRank, " axes)");
  int64_t nonzero = 1;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] < 0) fail("dimension ", dims[axis], " is negative");
    dims_[axis] = dims[axis];
    count_ *= dims[axis] == 0 ? 0 : 1;
    if (dims[axis] != 0) nonzero = checked_mul(nonzero, dims[axis]);
  }
  count_ = count_ == 0 ? 0 : nonzero;
}

bool Shape::operator==(const Shape& other) const {
  return std::ranges::equal(dims(), other.dims());
}

std::string Shape::text() const { return str("[", join(dims(), ", "), "]"); }

}  // namespace larder
