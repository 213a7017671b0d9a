// c[m][n] += sum over k, in order, of a[m][k] * b[k][n]: the one product of attention (scores are
// q times the transposed keys, outputs are weights times values). Every element of c is one chain
// of fused multiply-adds over k, so its bits do not depend on which rows and columns go together,
// nor on where the chain is interrupted.
#pragma once

#include <cstdint>

#include "larder/cpu/attend_tile.h"

namespace larder::cpu {
namespace {

struct TileProduct {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  int64_t count;  // of k
  float* c;
  int64_t c_stride;
};

template <class V, int kRows, int kVectors>
void multiply_tile(const TileProduct& t) {
  V sum[kRows][kVectors];
  const float *a = t.a, *b = t.b;
  float* c = t.c;
  const int64_t a_stride = t.a_stride, b_stride = t.b_stride, c_stride = t.c_stride;
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n] = V::load(c + m * c_stride + n * V::kLanes);
  for (int64_t k = t.count; k > 0; --k, ++a, b += b_stride) {
    V right[kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) right[n] = V::load(b + n * V::kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const V left = V::set1(a[m * a_stride]);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) sum[m][n] = fma(left, right[n], sum[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n].store(c + m * c_stride + n * V::kLanes);
}

// Vectors side by side that fit beside each other in the registers for so many rows.
template <class T>
constexpr int tile_vectors(int rows) {
  return rows * 4 <= T::kSums ? 4 : 2;
}

template <class V, int kRows>
void multiply_rows(const TileProduct& t, int64_t vectors) {
  switch (vectors) {
    case 1:
      return multiply_tile<V, kRows, 1>(t);
    case 2:
      return multiply_tile<V, kRows, 2>(t);
    case 3:
      return multiply_tile<V, kRows, 3>(t);
    default:
      return multiply_tile<V, kRows, 4>(t);
  }
}

// `vectors` columns of c, at most tile_vectors at a time.
template <class T, int kRows>
void multiply_strips(TileProduct t, int64_t vectors) {
  using V = typename T::V;
  constexpr int64_t kAtOnce = tile_vectors<T>(kRows);
  for (; vectors > 0; vectors -= kAtOnce) {
    multiply_rows<V, kRows>(t, vectors < kAtOnce ? vectors : kAtOnce);
    t.b += kAtOnce * V::kLanes;
    t.c += kAtOnce * V::kLanes;
  }
}

template <class T>
void multiply(const TileProduct& t, int32_t rows, int64_t vectors) {
  static_assert(kTileRows == 6);
  switch (rows) {
    case 1:
      return multiply_strips<T, 1>(t, vectors);
    case 2:
      return multiply_strips<T, 2>(t, vectors);
    case 3:
      return multiply_strips<T, 3>(t, vectors);
    case 4:
      return multiply_strips<T, 4>(t, vectors);
    case 5:
      return multiply_strips<T, 5>(t, vectors);
    default:
      return multiply_strips<T, 6>(t, vectors);
  }
}

}  // namespace
}  // namespace larder::cpu
