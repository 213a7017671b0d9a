// Products of codes for one set: MatmulCodesArgs in kernels.h says what they give, to the bit.
//
// A vector has a row of w in each lane, so that no sum crosses lanes: four codes of each row meet
// the same four of a row of x, which is broadcast. Tiles of several rows of x put independent sums
// side by side. `Dot` names the vector types and how whole products are summed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "larder/cpu/simd/range_ops.h"

namespace larder::cpu {
namespace {

// With few rows a product is bound by memory: the first tile of a panel fetches what lies so far
// behind it, in the order in which it lies, into L2.
constexpr int64_t kCodesAhead = int64_t{8} * 1024;

template <bool kInt4>
[[gnu::always_inline]] inline void fetch_codes(const char* panel, int64_t group) {
  constexpr int64_t kLines = kInt4 ? 5 : 9;  // of codes and parameters a group
  const char* at = panel + kCodesAhead + group * kLines * 64;
#pragma GCC unroll 9
  for (int64_t line = 0; line < kLines; ++line) __builtin_prefetch(at + line * 64, 0, 2);
}

// One group of x from one row on. In every array of CodedRowGroup the next row is 4 bytes further,
// so one pointer and constants reach all of it.
struct GroupOfRows {
  const char* at;
  const char* high(int64_t j, int64_t r) const { return at + (j * kCodedRows + r) * 4; }
  const char* low(int j, int r) const { return high(j, r) + offsetof(CodedRowGroup, low); }
  const char* scale(int64_t r) const { return at + offsetof(CodedRowGroup, scale) + 4 * r; }
  const char* high_scale(int64_t r) const {
    return at + offsetof(CodedRowGroup, high_scale) + 4 * r;
  }
  const char* high_sum(int64_t r) const { return at + offsetof(CodedRowGroup, high_sum) + 4 * r; }
  const char* offset(int64_t r) const { return at + offsetof(CodedRowGroup, offset) + 4 * r; }
};
inline int32_t word_at(const char* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
}
inline float float_at(const char* p) { return __builtin_bit_cast(float, word_at(p)); }

// The whole sums of one group. Inlined by force, as in matmul-inl.h.
template <class Dot, int kRows>
[[gnu::always_inline]] inline void sum_group4(GroupOfRows x, const char* codes,
                                              typename Dot::Whole (&whole)[kRows]) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) whole[r] = Dot::zero();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const auto both = Dot::load(codes + int64_t{j} * 64);
    const auto low = Dot::low(both), high = Dot::high(both);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r)
      whole[r] = Dot::add4(whole[r], low, word_at(x.high(int64_t{2} * j, r)));
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r)
      whole[r] = Dot::add4(whole[r], high, word_at(x.high(int64_t{2} * j + 1, r)));
  }
}

// The high parts of x first; times 128 they are joined by the low ones, in one register a row.
template <class Dot, int kRows>
[[gnu::always_inline]] inline void sum_group8(GroupOfRows x, const char* codes,
                                              typename Dot::Whole (&whole)[kRows]) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) whole[r] = Dot::zero();
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const auto w = Dot::codes8(codes + int64_t{j} * 64);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) whole[r] = Dot::add8(whole[r], w, word_at(x.high(j, r)));
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) whole[r] = Dot::times128(whole[r], word_at(x.offset(r)));
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const auto w = Dot::codes8(codes + int64_t{j} * 64);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) whole[r] = Dot::add8(whole[r], w, word_at(x.low(j, r)));
  }
}

template <class V>
struct AllOut {
  static V load(const float* p) { return V::load(p); }
  static void store(V v, float* p) { v.store(p); }
};
template <class V>
struct FirstOut {
  int64_t n;
  V load(const float* p) const { return V::load_first(p, n); }
  void store(V v, float* p) const { v.store_first(p, n); }
};

template <class V, int kRows, class Lanes>
[[gnu::always_inline]] inline void finish_codes(const CodedRange& m, const V (&sum)[kRows],
                                                int64_t row, int64_t col, Lanes lanes) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = (row + r) * m.out_stride + col;
    V out = sum[r];
    if (m.bias) out = add(out, lanes.load(m.bias + col));
    if (m.residual) out = add(lanes.load(m.residual + at), out);
    lanes.store(out, m.out + at);
  }
}

// Rows row .. row + kRows - 1, which lie in one block of x, with lanes `lane`.. of a panel.
template <class Dot, int kRows, bool kInt4>
void codes_tile(const CodedRange& m, int64_t row, int64_t panel, int64_t lane, bool fetch) {
  using V = typename Dot::Vec;
  const char* w = m.w + panel * m.panel_bytes;
  const char* params = w + 2 * lane;
  const char* codes = w + m.param_bytes + 4 * lane;
  GroupOfRows x{reinterpret_cast<const char*>(m.x + row / kCodedRows * m.groups) +
                row % kCodedRows * 4};
  V sum[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sum[r] = V::zero();
  for (int64_t g = 0; g < m.groups; ++g, x.at += sizeof(CodedRowGroup)) {
    if (fetch) fetch_codes<kInt4>(w, g);
    typename Dot::Whole whole[kRows];
    if constexpr (kInt4)
      sum_group4<Dot, kRows>(x, codes + g * 256, whole);
    else
      sum_group8<Dot, kRows>(x, codes + g * 512, whole);
    const V scale = V::load_bf16(params + g * (kInt4 ? 64 : 32));
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const float scale_x = float_at(kInt4 ? x.high_scale(r) : x.scale(r));
      sum[r] = fma(mul(scale, V::set1(scale_x)), Dot::to_float(whole[r]), sum[r]);
    }
    if constexpr (kInt4) {
      const V minimum = V::load_bf16(params + g * 64 + 32);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r)
        sum[r] = fma(minimum, V::set1(float_at(x.high_sum(r))), sum[r]);
    }
  }
  const int64_t col = panel * kCodePanel + lane, left = m.columns - col;
  if (left >= V::kLanes)
    finish_codes<V, kRows>(m, sum, row, col, AllOut<V>{});
  else if (left > 0)
    finish_codes<V, kRows>(m, sum, row, col, FirstOut<V>{left});
}

// `rows` < kMost rows at once.
template <class Dot, int kMost, bool kInt4>
void rest_of_codes(const CodedRange& m, int64_t row, int64_t rows, int64_t panel, int64_t lane,
                   bool fetch) {
  if constexpr (kMost > 1) {
    if (rows == kMost - 1) return codes_tile<Dot, kMost - 1, kInt4>(m, row, panel, lane, fetch);
    rest_of_codes<Dot, kMost - 1, kInt4>(m, row, rows, panel, lane, fetch);
  }
}

// A block of x that stays in L2 while all panels pass by; a panel stays in L1 while the block does.
constexpr int64_t kCodesBlockBytes = int64_t{448} * 1024;

template <class Dot, int kRows, bool kInt4>
void codes_range(const CodedRange& m, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                 int64_t panel_end) {
  static_assert(kCodedRows % kRows == 0);
  const int64_t fit = kCodesBlockBytes / (m.groups * int64_t{sizeof(CodedRowGroup)} + 1);
  const int64_t block = (fit > 1 ? fit : 1) * kCodedRows;
  for (int64_t begin = row_begin; begin < row_end; begin += block) {
    const int64_t end = begin + block < row_end ? begin + block : row_end;
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      for (int64_t lane = 0; lane < kCodePanel; lane += Dot::Vec::kLanes) {
        int64_t row = begin;
        for (; row + kRows <= end; row += kRows)
          codes_tile<Dot, kRows, kInt4>(m, row, panel, lane, row == begin && lane == 0);
        rest_of_codes<Dot, kRows, kInt4>(m, row, end - row, panel, lane, row == begin && lane == 0);
      }
    }
  }
}

template <class Dot, int kRows>
void matmul_of_codes(const CodedRange& m, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                     int64_t panel_end) {
  if (m.int4)
    codes_range<Dot, kRows, true>(m, row_begin, row_end, panel_begin, panel_end);
  else
    codes_range<Dot, kRows, false>(m, row_begin, row_end, panel_begin, panel_end);
}

}  // namespace
}  // namespace larder::cpu
