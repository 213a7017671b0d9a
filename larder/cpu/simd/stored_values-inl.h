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
  const float* p;        // [rows, 64] weights
  const KVLanes* lanes;  // of one format
  const KVLanes* next;   // what to fetch meanwhile
  int64_t head_dim;
  int64_t begin, end;  // lanes
  int64_t d;           // first channel
  float* c;
  int64_t c_stride;
};

// Where the channels of a strip of kVectors come from: load<n>(key) is vector n of a key's.
template <class V, template <class> class Format>
struct DenseStrip {
  explicit DenseStrip(const StoredProduct& t) : values(t.lanes->at), next(t.next->at), d(t.d) {}
  template <int kVector>
  V load(int64_t key) const {
    constexpr int64_t kBefore = kVector * V::kLanes;
    if constexpr (kBefore * Format<V>::kSize % 64 == 0)
      __builtin_prefetch(static_cast<const char*>(next[key]) + (d + kBefore) * Format<V>::kSize, 0,
                         2);
    return Format<V>::some(values[key], d + kBefore, V::kLanes);
  }
  const void* const* values;
  const void* const* next;
  int64_t d;
};

template <class T, class C>
struct CodedStrip {
  using V = typename T::V;
  explicit CodedStrip(const StoredProduct& t)
      : lanes(*t.lanes), next(t.next->at), d(t.d), head_dim(t.head_dim) {
    for (int64_t n = 0; n < 4; ++n)
      group[n] = (d + n * V::kLanes) / lanes.codes->channel_group * kTileKeys;
  }
  template <int kVector>
  V load(int64_t key) const {
    if (kVector == 0)
      __builtin_prefetch(static_cast<const char*>(next[key]) + d * C::kBits / 8, 0, 2);
    return coded_channels<T, C>(lanes, key, d + kVector * V::kLanes, group[kVector], head_dim);
  }
  const KVLanes& lanes;
  const void* const* next;
  int64_t d, head_dim;
  int64_t group[4];
};

// sum += left times the vectors of one key, of which one at a time waits in a register: with the
// lefts beside the sums that is all that AVX2 has for three rows.
template <class V, class Strip, int kRows, int kVectors, int kVector = 0>
[[gnu::always_inline]] inline void add_key(const Strip& strip, int64_t key, const V (&left)[kRows],
                                           V (&sum)[kRows][kVectors]) {
  const V right = strip.template load<kVector>(key);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sum[m][kVector] = fma(left[m], right, sum[m][kVector]);
  if constexpr (kVector + 1 < kVectors)
    add_key<V, Strip, kRows, kVectors, kVector + 1>(strip, key, left, sum);
}

template <class V, class Strip, int kRows, int kVectors>
void multiply_values(const StoredProduct& t) {
  V sum[kRows][kVectors];
  const StoredProduct s = t;
  const Strip strip(s);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n] = V::load(s.c + m * s.c_stride + n * V::kLanes);
  for (int64_t key = s.begin; key < s.end; ++key) {
    V left[kRows];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) left[m] = V::set1(s.p[int64_t{m} * kTileKeys + key]);
    add_key<V, Strip, kRows, kVectors>(strip, key, left, sum);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n].store(s.c + m * s.c_stride + n * V::kLanes);
}

// 64 channels, as many vectors at a time as registers allow.
template <class T, int kRows>
void multiply_values_as(StoredProduct t) {
  using V = typename T::V;
  constexpr int kAtOnce = tile_vectors<T>(kRows);
  const int64_t end = t.d + 64;
  for (; t.d < end; t.d += kAtOnce * V::kLanes, t.c += kAtOnce * V::kLanes) {
    switch (t.lanes->format[0]) {
      case KVFormat::kF16:
        multiply_values<V, DenseStrip<V, StoredF16>, kRows, kAtOnce>(t);
        break;
      case KVFormat::kBF16:
        multiply_values<V, DenseStrip<V, StoredBF16>, kRows, kAtOnce>(t);
        break;
      case KVFormat::kCodes:
        with_coding(*t.lanes, [&](auto coding) {
          multiply_values<V, CodedStrip<T, decltype(coding)>, kRows, kAtOnce>(t);
        });
        break;
      default:
        multiply_values<V, DenseStrip<V, StoredF32>, kRows, kAtOnce>(t);
    }
  }
}

template <class T>
void multiply_stored(const StoredProduct& t, int32_t rows) {
  static_assert(kTileRows == 6);
  switch (rows) {
    case 1:
      return multiply_values_as<T, 1>(t);
    case 2:
      return multiply_values_as<T, 2>(t);
    case 3:
      return multiply_values_as<T, 3>(t);
    case 4:
      return multiply_values_as<T, 4>(t);
    case 5:
      return multiply_values_as<T, 5>(t);
    default:
      return multiply_values_as<T, 6>(t);
  }
}

}  // namespace
}  // namespace larder::cpu
