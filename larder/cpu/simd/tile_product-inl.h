// c[m][n] += sum over k, in order, of a[m][k] * b[k][n]: the one product of attention (scores are
// q times the transposed keys, outputs are weights times values). Every element of c is one chain
// of T::multiply_add over k (a fused multiply-add; of pairs of bf16 in 32-bit words their dot
// product), so its bits do not depend on which rows and columns go together, nor on where the chain
// is interrupted.
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

// What a product does beside each step of k: nothing, or ask memory for what comes next.
struct NoFetch {
  void step() {}
};

template <class T, int kRows, int kVectors, class Fetch>
void multiply_tile(const TileProduct& t, Fetch& fetch) {
  using V = typename T::V;
  V sum[kRows][kVectors];
  const float *a = t.a, *b = t.b;
  float* c = t.c;
  const int64_t a_stride = t.a_stride, b_stride = t.b_stride, c_stride = t.c_stride;
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n] = V::load(c + m * c_stride + n * V::kLanes);
  for (int64_t k = t.count; k > 0; --k, ++a, b += b_stride) {
    fetch.step();
    V right[kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) right[n] = V::load(b + n * V::kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const V left = V::set1(a[m * a_stride]);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) sum[m][n] = T::multiply_add(left, right[n], sum[m][n]);
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

template <class T, int kRows, class Fetch>
void multiply_rows(const TileProduct& t, int64_t vectors, Fetch& fetch) {
  switch (vectors) {
    case 1:
      return multiply_tile<T, kRows, 1>(t, fetch);
    case 2:
      return multiply_tile<T, kRows, 2>(t, fetch);
    case 3:
      return multiply_tile<T, kRows, 3>(t, fetch);
    default:
      return multiply_tile<T, kRows, 4>(t, fetch);
  }
}

// `vectors` columns of c, at most tile_vectors at a time.
template <class T, int kRows, class Fetch>
void multiply_strips(TileProduct t, int64_t vectors, Fetch& fetch) {
  using V = typename T::V;
  constexpr int64_t kAtOnce = tile_vectors<T>(kRows);
  for (; vectors > 0; vectors -= kAtOnce) {
    multiply_rows<T, kRows>(t, vectors < kAtOnce ? vectors : kAtOnce, fetch);
    t.b += kAtOnce * V::kLanes;
    t.c += kAtOnce * V::kLanes;
  }
}

template <class T, class Fetch = NoFetch>
void multiply(const TileProduct& t, int32_t rows, int64_t vectors, Fetch fetch = {}) {
  static_assert(kTileRows == 6);
  switch (rows) {
    case 1:
      return multiply_strips<T, 1>(t, vectors, fetch);
    case 2:
      return multiply_strips<T, 2>(t, vectors, fetch);
    case 3:
      return multiply_strips<T, 3>(t, vectors, fetch);
    case 4:
      return multiply_strips<T, 4>(t, vectors, fetch);
    case 5:
      return multiply_strips<T, 5>(t, vectors, fetch);
    default:
      return multiply_strips<T, 6>(t, vectors, fetch);
  }
}

}  // namespace
}  // namespace larder::cpu
