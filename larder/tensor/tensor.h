// TensorView (where elements lie, owns nothing) and Tensor (owns, move-only).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "larder/tensor/allocator.h"
#include "larder/tensor/dtype.h"
#include "larder/tensor/shape.h"

namespace larder {

// A non-owning, freely copied view. Valid as long as the memory it points into. Strides are in
// elements, and may be zero or not contiguous. A view of a read-only mapping must not be written
// through.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  std::array<int64_t, kMaxRank> stride{};

  // A contiguous (row-major) view of `data`.
  static TensorView contiguous(void* data, DType dtype, const Shape& shape);

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  std::byte* bytes() const { return static_cast<std::byte*>(data); }
  int64_t count() const { return shape.count(); }
  int64_t byte_size() const {
    return checked_mul(count(), static_cast<int64_t>(dtype_size(dtype)));
  }
  bool is_contiguous() const;

  // Elements [begin, end) of `axis`. Throws unless 0 <= begin <= end <= shape[axis].
  TensorView slice(int axis, int64_t begin, int64_t end) const;
  TensorView transpose(int a, int b) const;
  // The same elements in another shape, without a copy. Throws if the counts differ or the strides
  // do not allow it.
  TensorView reshape(const Shape& to) const;
};

// Owns contiguous memory from an allocator, which must outlive it. Not cleared.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Allocator& allocator, const Shape& shape, DType dtype, std::string_view tag);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  Buffer buffer_;
  TensorView view_;
};

// Writes `from` into `to` element by element, converting between any two dtypes and any strides.
// Shapes must be equal. Floats narrow by round to nearest even; floats to integers truncate and
// saturate, NaN gives 0; bool is (x != 0).
void copy_into(const TensorView& to, const TensorView& from);

// A copy with its own memory, in `dtype`. The name says what it costs.
Tensor clone(Allocator& allocator, const TensorView& from, DType dtype, std::string_view tag);

}  // namespace larder
