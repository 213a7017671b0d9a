#include "larder/tensor/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace larder {

TensorView TensorView::contiguous(void* data, DType dtype, const Shape& shape) {
  TensorView view{data, dtype, shape, {}};
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    view.stride[static_cast<size_t>(axis)] = stride;
    stride *= std::max<int64_t>(shape[axis], 1);
  }
  return view;
}

bool TensorView::is_contiguous() const {
  int64_t expected = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && stride[static_cast<size_t>(axis)] != expected) return count() == 0;
    expected *= shape[axis];
  }
  return true;
}

TensorView TensorView::slice(int axis, int64_t begin, int64_t end) const {
  LARDER_ASSERT(axis >= 0 && axis < shape.rank());
  if (begin < 0 || begin > end || end > shape[axis]) {
    fail("slice [", begin, ", ", end, ") of axis ", axis, " of a tensor ", shape.text());
  }
  std::array<int64_t, kMaxRank> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  dims[static_cast<size_t>(axis)] = end - begin;
  TensorView result = *this;
  result.shape = Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(shape.rank())));
  const int64_t offset = checked_mul(begin, stride[static_cast<size_t>(axis)]);
  if (data) result.data = bytes() + checked_mul(offset, static_cast<int64_t>(dtype_size(dtype)));
  return result;
}

TensorView TensorView::transpose(int a, int b) const {
  LARDER_ASSERT(a >= 0 && a < shape.rank() && b >= 0 && b < shape.rank());
  std::array<int64_t, kMaxRank> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  std::swap(dims[static_cast<size_t>(a)], dims[static_cast<size_t>(b)]);
  TensorView result = *this;
  result.shape = Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(shape.rank())));
  std::swap(result.stride[static_cast<size_t>(a)], result.stride[static_cast<size_t>(b)]);
  return result;
}

namespace {

// Axes that lie one after another in memory, merged; innermost last. Axes of size 1 are dropped.
struct Run {
  int64_t size, stride;
};

int merge_axes(const TensorView& view, std::array<Run, kMaxRank>& runs) {
  int n = 0;
  for (int axis = 0; axis < view.shape.rank(); ++axis) {
    const Run run{view.shape[axis], view.stride[static_cast<size_t>(axis)]};
    if (run.size == 1) continue;
    Run* last = n > 0 ? &runs[static_cast<size_t>(n - 1)] : nullptr;
    if (last && last->stride == run.size * run.stride) {
      *last = {last->size * run.size, run.stride};
    } else {
      runs[static_cast<size_t>(n++)] = run;
    }
  }
  return n;
}

}  // namespace

TensorView TensorView::reshape(const Shape& to) const {
  if (to.count() != count())
    fail("cannot reshape ", shape.text(), " to ", to.text(), ": the counts differ");
  TensorView result = contiguous(data, dtype, to);
  if (count() == 0) return result;
  std::array<Run, kMaxRank> runs{};
  int run = merge_axes(*this, runs) - 1;
  int64_t left = run >= 0 ? runs[static_cast<size_t>(run)].size
                          : 1;  // of the current run, not yet given to an axis
  int64_t step = run >= 0 ? runs[static_cast<size_t>(run)].stride : 1;
  for (int axis = to.rank() - 1; axis >= 0; --axis) {
    if (to[axis] == 1) continue;
    if (left == 1) {
      --run;
      left = runs[static_cast<size_t>(run)].size;
      step = runs[static_cast<size_t>(run)].stride;
    }
    if (left % to[axis] != 0) {
      fail("cannot reshape ", shape.text(), " to ", to.text(),
           " without a copy: its strides do not allow it");
    }
    result.stride[static_cast<size_t>(axis)] = step;
    step *= to[axis];
    left /= to[axis];
  }
  return result;
}

Tensor::Tensor(Allocator& allocator, const Shape& shape, DType dtype, std::string_view tag)
    : buffer_(allocator,
              static_cast<size_t>(TensorView::contiguous(nullptr, dtype, shape).byte_size()), tag),
      view_(TensorView::contiguous(buffer_.data(), dtype, shape)) {}

namespace {

// An element may lie at any address (safetensors data need not be aligned), so it is read by
// memcpy.
template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <class T>
void store(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// The value as double: exact for all float types and for integers up to 2^53.
double read_float(DType dtype, const std::byte* p) {
  switch (dtype) {
    case DType::kF64:
      return load<double>(p);
    case DType::kF32:
      return load<float>(p);
    case DType::kF16:
      return f16_to_f32(load<uint16_t>(p));
    case DType::kBF16:
      return bf16_to_f32(load<uint16_t>(p));
    case DType::kF8E4M3:
      return f8_e4m3_to_f32(load<uint8_t>(p));
    default:
      return f8_e5m2_to_f32(load<uint8_t>(p));
  }
}

// Wide enough for the values of i64 and u64 both.
__extension__ typedef __int128 Wide;

Wide read_integer(DType dtype, const std::byte* p) {
  switch (dtype) {
    case DType::kI8:
      return load<int8_t>(p);
    case DType::kI16:
      return load<int16_t>(p);
    case DType::kU16:
      return load<uint16_t>(p);
    case DType::kI32:
      return load<int32_t>(p);
    case DType::kU32:
      return load<uint32_t>(p);
    case DType::kI64:
      return load<int64_t>(p);
    case DType::kU64:
      return load<uint64_t>(p);
    default:
      return load<uint8_t>(p);  // u8, bool
  }
}

// Rounding twice (f64 to f32 to 16 bits) could break a tie the wrong way; rounding the first step
// to odd prevents that.
float to_f32_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value || std::isinf(nearest))
    return nearest;
  const float toward_zero = std::fabs(static_cast<double>(nearest)) > std::fabs(value)
                                ? std::nextafter(nearest, 0.0f)
                                : nearest;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(toward_zero) | 1u);
}

void write_float(DType dtype, std::byte* p, double value) {
  switch (dtype) {
    case DType::kF64:
      return store(p, value);
    case DType::kF32:
      return store(p, static_cast<float>(value));
    case DType::kF16:
      return store(p, f32_to_f16(to_f32_odd(value)));
    case DType::kBF16:
      return store(p, f32_to_bf16(to_f32_odd(value)));
    case DType::kF8E4M3:
      return store(p, f32_to_f8_e4m3(to_f32_odd(value)));
    default:
      return store(p, f32_to_f8_e5m2(to_f32_odd(value)));
  }
}

template <class T>
T saturate(Wide value) {
  return static_cast<T>(
      std::clamp<Wide>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

void write_integer(DType dtype, std::byte* p, Wide value) {
  switch (dtype) {
    case DType::kI8:
      return store(p, saturate<int8_t>(value));
    case DType::kU8:
      return store(p, saturate<uint8_t>(value));
    case DType::kI16:
      return store(p, saturate<int16_t>(value));
    case DType::kU16:
      return store(p, saturate<uint16_t>(value));
    case DType::kI32:
      return store(p, saturate<int32_t>(value));
    case DType::kU32:
      return store(p, saturate<uint32_t>(value));
    case DType::kI64:
      return store(p, saturate<int64_t>(value));
    case DType::kU64:
      return store(p, saturate<uint64_t>(value));
    default:
      return store(p, static_cast<uint8_t>(value != 0));
  }
}

// The whole part, held within what Wide's users can store.
Wide truncate(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<Wide>(std::clamp(value, -0x1p64, 0x1p64));
}

// Past 2^53 a double cannot hold the integer; all that a narrower float needs to round right is
// whether the lost bits were zero.
double to_double_odd(Wide value) {
  constexpr Wide kLost = 0x7FF;
  const Wide magnitude = value < 0 ? -value : value;
  if (magnitude >> 53 == 0 || (magnitude & kLost) == 0) return static_cast<double>(value);
  const auto odd = static_cast<double>((magnitude & ~kLost) | (kLost + 1));
  return value < 0 ? -odd : odd;
}

void copy_element(DType to, std::byte* out, DType from, const std::byte* in) {
  if (is_float(from)) {
    const double value = read_float(from, in);
    if (is_float(to)) return write_float(to, out, value);
    return write_integer(to, out, to == DType::kBool ? (value != 0 ? 1 : 0) : truncate(value));
  }
  const Wide value = read_integer(from, in);
  if (!is_float(to)) return write_integer(to, out, value);
  write_float(to, out, to == DType::kF64 ? static_cast<double>(value) : to_double_odd(value));
}

void copy_axis(const TensorView& to, const TensorView& from, int axis, std::byte* out,
               const std::byte* in) {
  if (axis == to.shape.rank()) return copy_element(to.dtype, out, from.dtype, in);
  const auto a = static_cast<size_t>(axis);
  const int64_t out_step = to.stride[a] * static_cast<int64_t>(dtype_size(to.dtype));
  const int64_t in_step = from.stride[a] * static_cast<int64_t>(dtype_size(from.dtype));
  const bool innermost = axis + 1 == to.shape.rank();
  if (innermost && to.dtype == from.dtype && out_step == in_step &&
      out_step == static_cast<int64_t>(dtype_size(to.dtype))) {
    std::memcpy(out, in, static_cast<size_t>(out_step * to.shape[axis]));
    return;
  }
  for (int64_t i = 0; i < to.shape[axis]; ++i)
    copy_axis(to, from, axis + 1, out + i * out_step, in + i * in_step);
}

}  // namespace

void copy_into(const TensorView& to, const TensorView& from) {
  if (!(to.shape == from.shape)) fail("copy of ", from.shape.text(), " into ", to.shape.text());
  if (to.count() == 0) return;
  copy_axis(to, from, 0, to.bytes(), from.bytes());
}

Tensor clone(Allocator& allocator, const TensorView& from, DType dtype, std::string_view tag) {
  Tensor result(allocator, from.shape, dtype, tag);
  copy_into(result, from);
  return result;
}

}  // namespace larder
