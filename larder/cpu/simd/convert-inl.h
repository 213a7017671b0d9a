// Conversions between f32 and the types of caches and weights, for one set. Exact upwards;
// downwards to nearest even, with gradual underflow, and a NaN stays a NaN.
#pragma once

#include <cstdint>

#include "larder/tensor/dtype.h"

namespace larder::cpu {
namespace {

template <class V>
bool store_row(void* out, DType dtype, const float* x, int64_t n) {
  char* to = static_cast<char*>(out);
  int64_t i = 0;
  switch (dtype) {
    case DType::kF32:
      if (n > 0) __builtin_memmove(out, x, static_cast<size_t>(n) * 4);
      return true;
    case DType::kBF16:
      for (; i + V::kLanes <= n; i += V::kLanes) V::load(x + i).store_bf16(to + 2 * i);
      if (i < n) V::load_first(x + i, n - i).store_bf16_first(to + 2 * i, n - i);
      return true;
    case DType::kF16:
      for (; i + V::kLanes <= n; i += V::kLanes) V::load(x + i).store_f16(to + 2 * i);
      if (i < n) V::load_first(x + i, n - i).store_f16_first(to + 2 * i, n - i);
      return true;
    default:
      return false;
  }
}

template <class V>
bool load_row(float* out, const void* x, DType dtype, int64_t n) {
  const char* from = static_cast<const char*>(x);
  int64_t i = 0;
  switch (dtype) {
    case DType::kF32:
      if (n > 0) __builtin_memmove(out, x, static_cast<size_t>(n) * 4);
      return true;
    case DType::kBF16:
      for (; i + V::kLanes <= n; i += V::kLanes) V::load_bf16(from + 2 * i).store(out + i);
      if (i < n) V::load_bf16_first(from + 2 * i, n - i).store_first(out + i, n - i);
      return true;
    case DType::kF16:
      for (; i + V::kLanes <= n; i += V::kLanes) V::load_f16(from + 2 * i).store(out + i);
      if (i < n) V::load_f16_first(from + 2 * i, n - i).store_first(out + i, n - i);
      return true;
    default:
      return false;
  }
}

// x rounded to `compute`: stored in that type, or widened again to f32.
template <class V>
bool round_row(void* out, DType out_type, const float* x, int64_t n, DType compute) {
  if (out_type == compute) return store_row<V>(out, out_type, x, n);
  if (out_type != DType::kF32) return false;
  float* to = static_cast<float*>(out);
  int64_t i = 0;
  switch (compute) {
    case DType::kBF16:
      for (; i + V::kLanes <= n; i += V::kLanes) V::load(x + i).round_bf16().store(to + i);
      if (i < n) V::load_first(x + i, n - i).round_bf16().store_first(to + i, n - i);
      return true;
    case DType::kF16:
      for (; i + V::kLanes <= n; i += V::kLanes) V::load(x + i).round_f16().store(to + i);
      if (i < n) V::load_first(x + i, n - i).round_f16().store_first(to + i, n - i);
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace larder::cpu
