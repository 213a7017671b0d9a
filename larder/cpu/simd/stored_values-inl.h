// Weights times values, read where they lie and widened in registers: c[m][d] += sum over keys, in
// order, of p[m][key] * v[key][d]. The same chains of fused multiply-adds as over a V tile, without
// writing one: decode has too few rows to make up for that (docs/performance.md).
#pragma once

#include <cstdint>

#include "larder/cpu/simd/kv_tile-inl.h"
#include "larder/cpu/simd/tile_product-inl.h"

namespace larder::cpu {
namespace {

struct StoredProduct {
  const float* p;             // [rows, 64] weights
  const void* const* values;  // by lane, all of one format
  const void* const* next;    // by lane: what to fetch meanwhile
  int64_t begin, end;         // lanes
  int64_t d;                  // first channel
  float* c;
  int64_t c_stride;
};

template <class V, template <class> class Format, int kRows, int kVectors>
void multiply_values(const StoredProduct& t) {
  V sum[kRows][kVectors];
  const StoredProduct s = t;
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n] = V::load(s.c + m * s.c_stride + n * V::kLanes);
  for (int64_t key = s.begin; key < s.end; ++key) {
    V right[kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) {
      right[n] = Format<V>::some(s.values[key], s.d + n * V::kLanes, V::kLanes);
      if (n * V::kLanes * Format<V>::kSize % 64 == 0)
        __builtin_prefetch(
            static_cast<const char*>(s.next[key]) + (s.d + n * V::kLanes) * Format<V>::kSize, 0, 2);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const V left = V::set1(s.p[m * kTileKeys + key]);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) sum[m][n] = fma(left, right[n], sum[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n].store(s.c + m * s.c_stride + n * V::kLanes);
}

// 64 channels, as many vectors at a time as registers allow.
template <class T, int kRows>
void multiply_values_as(KVFormat format, StoredProduct t) {
  using V = typename T::V;
  constexpr int kAtOnce = tile_vectors<T>(kRows);
  const int64_t end = t.d + 64;
  for (; t.d < end; t.d += kAtOnce * V::kLanes, t.c += kAtOnce * V::kLanes) {
    switch (format) {
      case KVFormat::kF16:
        multiply_values<V, StoredF16, kRows, kAtOnce>(t);
        break;
      case KVFormat::kBF16:
        multiply_values<V, StoredBF16, kRows, kAtOnce>(t);
        break;
      default:
        multiply_values<V, StoredF32, kRows, kAtOnce>(t);
    }
  }
}

template <class T>
void multiply_stored(KVFormat format, const StoredProduct& t, int32_t rows) {
  static_assert(kTileRows == 6);
  switch (rows) {
    case 1:
      return multiply_values_as<T, 1>(format, t);
    case 2:
      return multiply_values_as<T, 2>(format, t);
    case 3:
      return multiply_values_as<T, 3>(format, t);
    case 4:
      return multiply_values_as<T, 4>(format, t);
    case 5:
      return multiply_values_as<T, 5>(format, t);
    default:
      return multiply_values_as<T, 6>(format, t);
  }
}

}  // namespace
}  // namespace larder::cpu
