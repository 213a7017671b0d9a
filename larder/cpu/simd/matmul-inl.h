// out[r, n] = residual + (sum_k x[r, k] * w[n, k] + bias), for one set.
//
// The order over K, the same for every output: one vector accumulator, K walked in steps of the
// vector's width, a masked step for the rest, then the vector's fixed reduction tree. Tiles of
// several rows and columns only put independent accumulators side by side, so an output's bits do
// not depend on how many there are.
#pragma once

#include <cstdint>

#include "larder/cpu/simd/convert-inl.h"
#include "larder/cpu/simd/fetch-inl.h"
#include "larder/cpu/simd/range_ops.h"
#include "larder/cpu/simd/vec4.h"

namespace larder::cpu {
namespace {

// How one pair of element types is read and multiplied. `Lanes` are kStep elements of x or w.
template <class V, class LoadW>
struct WidenedPair {
  using Vec = V;
  using Lanes = V;
  static constexpr int64_t kStep = V::kLanes, kXSize = 4, kWSize = LoadW::kSize;
  static V load_x(const char* p) { return V::load(p); }
  static V load_x_first(const char* p, int64_t n) { return V::load_first(p, n); }
  static V load_w(const char* p) { return LoadW::load(p); }
  static V load_w_first(const char* p, int64_t n) { return LoadW::load_first(p, n); }
  static V dot(V sum, V x, V w) { return fma(x, w, sum); }
};

template <class V>
struct LoadF32 {
  static constexpr int64_t kSize = 4;
  static V load(const char* p) { return V::load(p); }
  static V load_first(const char* p, int64_t n) { return V::load_first(p, n); }
};
template <class V>
struct LoadBf16 {
  static constexpr int64_t kSize = 2;
  static V load(const char* p) { return V::load_bf16(p); }
  static V load_first(const char* p, int64_t n) { return V::load_bf16_first(p, n); }
};
template <class V>
struct LoadF16 {
  static constexpr int64_t kSize = 2;
  static V load(const char* p) { return V::load_f16(p); }
  static V load_first(const char* p, int64_t n) { return V::load_f16_first(p, n); }
};

// finish and step are inlined by force: a call would take the address of the accumulators, and then
// GCC stores all of them to memory at every step (2.3 times slower).
template <class V, int kRows, int kCols>
[[gnu::always_inline]] inline void finish(const MatmulRange& m, const V (&sum)[kRows][kCols],
                                          int64_t row, int64_t col) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = (row + r) * m.out_stride + col;
    if constexpr (kCols == 4) {
      Vec4 four = reduce_add4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
      if (m.bias) four = add(four, Vec4::load(m.bias + col));
      if (m.residual) four = add(Vec4::load(m.residual + at), four);
      four.store(m.out + at);
    } else {
      float one = reduce_add(sum[r][0]);
      if (m.bias) one = one + m.bias[col];
      if (m.residual) one = m.residual[at] + one;
      m.out[at] = one;
    }
  }
}

// With few rows a matmul is bound by memory. Each w row is then a stream of its own, and the
// processor's prefetchers follow one stream better than four: the tiles of a column ask for the
// bytes of w in the order in which they lie, this far ahead, into L2 (measured:
// docs/performance.md). Each asks for its share, so that memory works as long as arithmetic does.
constexpr int64_t kPrefetchAhead = int64_t{12} * 1024;

struct NoFetch {
  static void step(int64_t /*i*/) {}
};

// One tile has all the rows: as many bytes a step as it reads, from element i on.
template <class Pair, int kCols>
struct FetchColumn {
  const char* w;
  [[gnu::always_inline]] void step(int64_t i) const {
    constexpr int64_t kBytes = kCols * Pair::kStep * Pair::kWSize;
#pragma GCC unroll 8
    for (int64_t at = 0; at < kBytes; at += kLine)
      __builtin_prefetch(w + kCols * i * Pair::kWSize + at + kPrefetchAhead, 0, kIntoL2);
  }
};

// One step: elements i.. of kRows rows of x and kCols rows of w, all lanes or the first ones.
template <class Pair, int kRows, int kCols, class LanesOf>
[[gnu::always_inline]] inline void step(const MatmulRange& m, const char* x, const char* w,
                                        int64_t i, LanesOf lanes,
                                        typename Pair::Vec (&sum)[kRows][kCols]) {
  typename Pair::Lanes xs[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) xs[r] = lanes.x(x + r * m.x_stride + i * Pair::kXSize);
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) {
    const typename Pair::Lanes ws = lanes.w(w + c * m.w_stride + i * Pair::kWSize);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r][c] = Pair::dot(sum[r][c], xs[r], ws);
  }
}

template <class Pair>
struct AllLanes {
  static typename Pair::Lanes x(const char* p) { return Pair::load_x(p); }
  static typename Pair::Lanes w(const char* p) { return Pair::load_w(p); }
};
template <class Pair>
struct LanesBefore {
  int64_t n;
  typename Pair::Lanes x(const char* p) const { return Pair::load_x_first(p, n); }
  typename Pair::Lanes w(const char* p) const { return Pair::load_w_first(p, n); }
};

template <class Pair, int kRows, int kCols, class Fetch>
[[gnu::always_inline]] inline void sum_steps(const MatmulRange& m, const char* x, const char* w,
                                             Fetch fetch, typename Pair::Vec (&sum)[kRows][kCols]) {
  int64_t i = 0;
  for (; i + Pair::kStep <= m.k; i += Pair::kStep) {
    fetch.step(i);
    step<Pair, kRows, kCols>(m, x, w, i, AllLanes<Pair>{}, sum);
  }
  if (i < m.k) step<Pair, kRows, kCols>(m, x, w, i, LanesBefore<Pair>{m.k - i}, sum);
}

// kRows x kCols outputs from (row, col) on; `all` rows share the column, of which `before` have had
// their tiles.
template <class Pair, int kRows, int kCols>
void tile(const MatmulRange& m, int64_t row, int64_t col, int64_t before, int64_t all) {
  using V = typename Pair::Vec;
  const char* x = static_cast<const char*>(m.x) + row * m.x_stride;
  const char* w = static_cast<const char*>(m.w) + col * m.w_stride;
  V sum[kRows][kCols];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) sum[r][c] = V::zero();
  if (kCols == 1 || all > kRowsThatWait) {
    sum_steps<Pair, kRows, kCols>(m, x, w, NoFetch{}, sum);
  } else if (all == kRows) {
    sum_steps<Pair, kRows, kCols>(m, x, w, FetchColumn<Pair, kCols>{w}, sum);
  } else {
    const FetchShare share(w + kPrefetchAhead, kCols * m.w_stride, m.k / Pair::kStep + 1, before,
                           kRows, all);
    sum_steps<Pair, kRows, kCols>(m, x, w, share, sum);
  }
  finish<V, kRows, kCols>(m, sum, row, col);
}

// `rows` < kMost rows at once.
template <class Pair, int kMost, int kCols>
void rest_of_rows(const MatmulRange& m, int64_t row, int64_t rows, int64_t col, int64_t before,
                  int64_t all) {
  if constexpr (kMost > 1) {
    if (rows == kMost - 1) return tile<Pair, kMost - 1, kCols>(m, row, col, before, all);
    rest_of_rows<Pair, kMost - 1, kCols>(m, row, rows, col, before, all);
  }
}

template <class Pair, int kRows, int kCols>
void column(const MatmulRange& m, int64_t row_begin, int64_t row_end, int64_t col) {
  const int64_t all = row_end - row_begin;
  int64_t row = row_begin;
  for (; row + kRows <= row_end; row += kRows)
    tile<Pair, kRows, kCols>(m, row, col, row - row_begin, all);
  rest_of_rows<Pair, kRows, kCols>(m, row, row_end - row, col, row - row_begin, all);
}

// A block of x that stays in the L2 cache (1 MiB on the machine this was measured on, 256 KiB on
// the smallest) while all of w passes by; within it, four rows of w stay in L1 while the block
// passes.
constexpr int64_t kBlockBytes = int64_t{448} * 1024;

// Four rows of w as f32, where many rows of x will read them: widened once instead of once a tile.
// Longer rows would leave no room in L1 for x.
constexpr int64_t kWidenedElements = int64_t{4} * 768;

// The columns from `col` on by fours, each read through a copy in f32; returns the first one left.
template <class Pair, int kRows>
int64_t widened_columns(const MatmulRange& m, int64_t row, int64_t end, int64_t col,
                        int64_t col_end) {
  using V = typename Pair::Vec;
  alignas(64) float wide[kWidenedElements];
  MatmulRange four = m;
  four.w = wide, four.w_stride = m.k * static_cast<int64_t>(sizeof(float));
  for (; col + 4 <= col_end; col += 4) {
    for (int64_t c = 0; c < 4; ++c)
      load_row<V>(wide + c * m.k, static_cast<const char*>(m.w) + (col + c) * m.w_stride, m.w_type,
                  m.k);
    four.out = m.out + col;
    four.bias = m.bias ? m.bias + col : nullptr;
    four.residual = m.residual ? m.residual + col : nullptr;
    column<WidenedPair<V, LoadF32<V>>, kRows, 4>(four, row, end, 0);
  }
  return col;
}

template <class Pair, int kRows>
void matmul_pair(const MatmulRange& m, int64_t row_begin, int64_t row_end, int64_t col_begin,
                 int64_t col_end) {
  const int64_t fit = kBlockBytes / (m.k * Pair::kXSize + 1) / kRows * kRows;
  const int64_t block = fit > kRows ? fit : kRows;
  for (int64_t row = row_begin; row < row_end; row += block) {
    const int64_t end = row + block < row_end ? row + block : row_end;
    int64_t col = col_begin;
    if constexpr (Pair::kWSize < Pair::kXSize) {
      if (end - row > kRowsThatWait && 4 * m.k <= kWidenedElements)
        col = widened_columns<Pair, kRows>(m, row, end, col, col_end);
    }
    for (; col + 4 <= col_end; col += 4) column<Pair, kRows, 4>(m, row, end, col);
    for (; col < col_end; ++col) column<Pair, kRows, 1>(m, row, end, col);
  }
}

// f32 activations with weights of any type, widened in registers. kRows x 4 accumulators, kRows
// vectors of x and one of w fill the registers.
template <class V, int kRows>
bool matmul_f32(const MatmulRange& m, int64_t row_begin, int64_t row_end, int64_t col_begin,
                int64_t col_end) {
  if (m.x_type != DType::kF32) return false;
  switch (m.w_type) {
    case DType::kF32:
      matmul_pair<WidenedPair<V, LoadF32<V>>, kRows>(m, row_begin, row_end, col_begin, col_end);
      return true;
    case DType::kBF16:
      matmul_pair<WidenedPair<V, LoadBf16<V>>, kRows>(m, row_begin, row_end, col_begin, col_end);
      return true;
    case DType::kF16:
      matmul_pair<WidenedPair<V, LoadF16<V>>, kRows>(m, row_begin, row_end, col_begin, col_end);
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace larder::cpu
