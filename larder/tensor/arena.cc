#include "larder/tensor/arena.h"

#include <algorithm>

namespace larder {

size_t Arena::padded(int64_t count, DType dtype) {
  const int64_t bytes = checked_mul(count, static_cast<int64_t>(dtype_size(dtype)));
  return (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

void Arena::reserve(size_t bytes) {
  LARDER_ASSERT(used_ == 0);
  if (bytes <= buffer_.size()) return;
  // The old room goes first, so that growing never holds both; if the new one is refused, the old
  // size is taken again.
  const size_t old = buffer_.size();
  buffer_ = Buffer();
  try {
    buffer_ = Buffer(allocator_, bytes, "scratch");
  } catch (...) {
    if (old > 0) buffer_ = Buffer(allocator_, old, "scratch");
    throw;
  }
}

TensorView Arena::take(const Shape& shape, DType dtype) {
  const size_t bytes = padded(shape.count(), dtype);
  if (bytes > buffer_.size() - used_) {
    fail_as(ErrorKind::kOutOfMemory, "scratch of ", buffer_.size(), " bytes is full: ", used_,
            " taken, ", bytes, " more asked");
  }
  std::byte* at = buffer_.data() + used_;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return TensorView::contiguous(at, dtype, shape);
}

}  // namespace larder
