// The arithmetic of fused attention on one block, for any vector width. Order of every sum (see
// docs/numerics.md): q.k over channels in order; softmax sums over vectors of lanes left to right,
// then the vector's fixed tree; the output over visible keys in order; parts by merge() left to
// right. A row's numbers come from its own lanes only; hidden keys are selected away before they
// meet any of them, and their V is not touched.
//
// T is the instruction set: T::V, T::kSums (accumulators that fit in registers), T::mask(bits),
// T::bits(mask), T::load_masked, and what kv_tile-inl.h needs.
#pragma once

#include <cfloat>
#include <cstdint>

#include "larder/cpu/simd/code_scores-inl.h"
#include "larder/cpu/simd/kv_tile-inl.h"
#include "larder/cpu/simd/math-inl.h"
#include "larder/cpu/simd/stored_values-inl.h"
#include "larder/cpu/simd/tile_product-inl.h"

namespace larder::cpu {
namespace {

constexpr float kLowest = -FLT_MAX;
constexpr float kNone = -__builtin_inff();
constexpr int64_t kStrip = 64;  // channels of the output at a time

// The channels of the strip that begins at d, of `dim` in all.
inline int64_t strip_width(int64_t dim, int64_t d) { return dim - d < kStrip ? dim - d : kStrip; }

// The rows of one fold_block call, on the stack.
struct BlockRows {
  alignas(64) float p[kTileRows][kTileKeys];  // scores, then weights
  uint64_t visible[kTileRows];
  alignas(64) float m[kTilePad], l[kTilePad];
};

// What rows without a visible key keep. By vectors: of `{}` GCC makes a string instruction, which
// takes as long as a row's softmax.
template <class T>
inline void clear_sums(BlockRows& rows) {
  using V = typename T::V;
  for (int64_t i = 0; i < kTilePad; i += V::kLanes) {
    V::zero().store(rows.m + i);
    V::zero().store(rows.l + i);
  }
}

// The vectors that hold a visible lane of any row.
template <class T>
inline VectorRange vectors_of(uint64_t lanes) {
  constexpr int64_t kLanes = T::V::kLanes;
  return {__builtin_ctzll(lanes) / kLanes, (63 - __builtin_clzll(lanes)) / kLanes + 1};
}

template <class T>
inline typename T::V cap_score(typename T::V s, float cap) {
  using V = typename T::V;
  return mul(V::set1(cap), tanh(div(s, V::set1(cap))));
}

// Scores to weights of one row: scale, cap, bias; the largest; exp; the sum. A score of -inf hides
// its key.
template <class T>
void weigh_row(const BlockWork& work, int32_t r, const VectorRange& range, BlockRows& rows) {
  using V = typename T::V;
  float* p = rows.p[r];
  V largest = V::set1(kNone);
  uint64_t seen = 0;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const uint64_t lanes = lanes_of<T>(rows.visible[r], i);
    V s = mul(V::load(p + i * V::kLanes), V::set1(work.scale));
    if (work.softcap > 0) s = cap_score<T>(s, work.softcap);
    if (work.bias[r] != nullptr)
      s = add(s, T::load_masked(work.bias[r] + i * V::kLanes, T::mask(lanes)));
    const uint64_t open = lanes & ~uint64_t{T::bits(less(s, V::set1(kLowest)))};
    s = V::select(T::mask(open), s, V::set1(kNone));
    s.store(p + i * V::kLanes);
    largest = max(largest, s);
    seen |= open << (i * V::kLanes);
  }
  rows.visible[r] = seen;
  if (seen == 0) return;
  rows.m[r] = reduce_max(largest);
  V sum = V::zero();
  for (int64_t i = range.begin; i < range.end; ++i) {
    const V e = exp(sub(V::load(p + i * V::kLanes), V::set1(rows.m[r])));
    const V weight = V::select(T::mask(lanes_of<T>(seen, i)), e, V::zero());
    weight.store(p + i * V::kLanes);
    sum = add(sum, weight);
  }
  rows.l[r] = reduce_add(sum);
}

// What the outputs of two parts are multiplied with when they are merged, by row.
struct MergeFactors {
  alignas(64) float a[kTilePad], b[kTilePad];
};

// Merges m and l of up to kTilePad rows; empty parts change nothing, the first that is not is taken
// as it is.
template <class T>
void merge_sums(float* into_m, float* into_l, const float* from_m, const float* from_l,
                int64_t count, MergeFactors& factors) {
  using V = typename T::V;
  for (int64_t i = 0; i < count; i += V::kLanes) {
    const int64_t n = count - i < V::kLanes ? count - i : V::kLanes;
    const V ma = V::load_first(into_m + i, n), la = V::load_first(into_l + i, n);
    const V mb = V::load_first(from_m + i, n), lb = V::load_first(from_l + i, n);
    const V m = max(ma, mb);
    const V a = exp(sub(ma, m)), b = exp(sub(mb, m));
    a.store(factors.a + i);
    b.store(factors.b + i);
    // Empty sums are 0 and never NaN, and others are at least 1 or NaN.
    const auto keep = less(lb, V::set1(FLT_MIN)), take = less(la, V::set1(FLT_MIN));
    const V l = fma(lb, b, mul(la, a));
    V::select(keep, ma, V::select(take, mb, m)).store_first(into_m + i, n);
    V::select(keep, la, V::select(take, lb, l)).store_first(into_l + i, n);
  }
}

// The outputs of one row that go with merge_sums; `first`: nothing was there before.
template <class T>
inline void merge_outputs(bool first, float a, float b, float* into, const float* from,
                          int64_t count) {
  using V = typename T::V;
  if (first) {
    for (int64_t d = 0; d < count; d += V::kLanes) V::load(from + d).store(into + d);
    return;
  }
  for (int64_t d = 0; d < count; d += V::kLanes) {
    const V scaled = mul(V::load(into + d), V::set1(a));
    fma(V::load(from + d), V::set1(b), scaled).store(into + d);
  }
}

// sum[row] += weights of the keys [begin, end) times their values, channels [d, d + vectors).
template <class T>
inline void add_values(const BlockWork& work, const BlockRows& rows, int32_t first, int32_t count,
                       const VectorRange& keys, int64_t d, float (*sum)[kStrip]) {
  if (work.v_tile == nullptr) {
    multiply_stored<T>({.p = rows.p[first],
                        .lanes = &work.block->v,
                        .next = work.next->present != 0 ? &work.next->v : &work.block->v,
                        .head_dim = work.head_dim,
                        .begin = keys.begin,
                        .end = keys.end,
                        .d = d,
                        .c = sum[first],
                        .c_stride = kStrip},
                       count);
    return;
  }
  using V = typename T::V;
  const int64_t channels = strip_width(work.padded_dim, d);
  multiply<T>({.a = rows.p[first] + keys.begin,
               .a_stride = kTileKeys,
               .b = work.v_tile + keys.begin * work.padded_dim + d,
               .b_stride = work.padded_dim,
               .count = keys.end - keys.begin,
               .c = sum[first],
               .c_stride = kStrip},
              count, channels / V::kLanes);
}

// Keys in order: runs that all rows see go together; where sights differ, each row takes its own.
template <class T>
void sum_values(const BlockWork& work, const BlockRows& rows, int64_t d, float (*sum)[kStrip]) {
  uint64_t any = 0, all = ~uint64_t{0};
  for (int32_t r = 0; r < work.rows; ++r) any |= rows.visible[r], all &= rows.visible[r];
  while (any != 0) {
    const int64_t begin = __builtin_ctzll(any);
    const bool together = (all >> begin & 1) != 0;
    const uint64_t other = together ? ~all : ~any | all;  // lanes that end this run
    const uint64_t after = other & (~uint64_t{0} << begin);
    const int64_t end = after == 0 ? kTileKeys : __builtin_ctzll(after);
    if (together) {
      add_values<T>(work, rows, 0, work.rows, {begin, end}, d, sum);
    } else {
      for (int64_t key = begin; key < end; ++key)
        for (int32_t r = 0; r < work.rows; ++r)
          if ((rows.visible[r] >> key & 1) != 0)
            add_values<T>(work, rows, r, 1, {key, key + 1}, d, sum);
    }
    any = end == kTileKeys ? 0 : any & (~uint64_t{0} << end);
  }
}

// q.k of every row, in the vectors of `range`.
template <class T>
void score_rows(const BlockWork& work, const VectorRange& range, BlockRows& rows) {
  using V = typename T::V;
  if (work.block->k.folded) return score_codes<T>(work, range, rows.p);
  for (int32_t r = 0; r < work.rows; ++r)
    for (int64_t i = range.begin; i < range.end; ++i) V::zero().store(rows.p[r] + i * V::kLanes);
  multiply<T>({.a = work.q,
               .a_stride = work.head_dim,
               .b = work.k_tile + range.begin * V::kLanes,
               .b_stride = kTileKeys,
               .count = work.head_dim,
               .c = rows.p[0] + range.begin * V::kLanes,
               .c_stride = kTileKeys},
              work.rows, range.end - range.begin);
}

// Channels [d, d + kStrip) of the output: the block's, as `sum_up` adds them, merged into the
// parts.
template <class T, class SumUp>
void fold_strip(const BlockWork& work, const BlockRows& rows, const bool* first,
                const MergeFactors& factors, int64_t d, const SumUp& sum_up) {
  using V = typename T::V;
  const int64_t count = strip_width(work.padded_dim, d);
  alignas(64) float sum[kTileRows][kStrip];
  for (int32_t r = 0; r < work.rows; ++r)
    for (int64_t i = 0; i < count; i += V::kLanes) V::zero().store(sum[r] + i);
  sum_up(work, rows, d, sum);
  for (int32_t r = 0; r < work.rows; ++r) {
    if (rows.visible[r] == 0) continue;
    merge_outputs<T>(first[r], factors.a[r], factors.b[r],
                     work.parts.o + int64_t{r} * work.padded_dim + d, sum[r], count);
  }
}

// Takes from all channels of a row what its weights times the zeros of codes add up to.
template <class T>
void subtract_offsets(const BlockWork& work, const float* off, int64_t d, float (*sum)[kStrip]) {
  using V = typename T::V;
  const int64_t channels = strip_width(work.head_dim, d);
  for (int32_t r = 0; r < work.rows; ++r)
    for (int64_t i = 0; i < channels; i += V::kLanes)
      sub(V::load(sum[r] + i), V::set1(off[r])).store(sum[r] + i);
}

// A block whose rows are weighed, merged into the parts.
template <class T, class SumUp>
void merge_block(const BlockWork& work, const BlockRows& rows, const SumUp& sum_up) {
  bool first[kTileRows];
  for (int32_t r = 0; r < work.rows; ++r) first[r] = work.parts.l[r] == 0;
  MergeFactors factors;  // NOLINT(cppcoreguidelines-pro-type-member-init): merge_sums does
  merge_sums<T>(work.parts.m, work.parts.l, rows.m, rows.l, work.rows, factors);
  for (int64_t d = 0; d < work.padded_dim; d += kStrip)
    fold_strip<T>(work, rows, first, factors, d, sum_up);
}

template <class T>
void fold_block(const BlockWork& work) {
  uint64_t any = 0;
  for (int32_t r = 0; r < work.rows; ++r) any |= work.visible[r];
  if (any == 0) return;
  const VectorRange range = vectors_of<T>(any);
  const bool folded = work.block->v.folded;
  BlockRows rows;  // NOLINT(cppcoreguidelines-pro-type-member-init): see clear_sums
  float off[kTileRows]{};
  clear_sums<T>(rows);
  score_rows<T>(work, range, rows);
  for (int32_t r = 0; r < work.rows; ++r) {
    rows.visible[r] = work.visible[r];
    if (rows.visible[r] == 0) continue;
    weigh_row<T>(work, r, range, rows);
    if (folded) off[r] = fold_scales<T>(work.block->v, range, rows.visible[r], rows.p[r]);
  }
  merge_block<T>(work, rows, [&](const auto&, const auto&, int64_t d, float(*sum)[kStrip]) {
    sum_values<T>(work, rows, d, sum);
    if (folded) subtract_offsets<T>(work, off, d, sum);
  });
}

template <class T>
void merge(const AttendParts& into, const AttendParts& from, int32_t rows, int32_t padded_dim) {
  for (int64_t row = 0; row < rows; row += kTilePad) {
    const int64_t count = rows - row < kTilePad ? rows - row : kTilePad;
    bool first[kTilePad];
    for (int64_t r = 0; r < count; ++r) first[r] = into.l[row + r] == 0;
    MergeFactors factors;  // NOLINT(cppcoreguidelines-pro-type-member-init): merge_sums does
    merge_sums<T>(into.m + row, into.l + row, from.m + row, from.l + row, count, factors);
    for (int64_t r = 0; r < count; ++r) {
      if (from.l[row + r] == 0) continue;
      merge_outputs<T>(first[r], factors.a[r], factors.b[r], into.o + (row + r) * padded_dim,
                       from.o + (row + r) * padded_dim, padded_dim);
    }
  }
}

template <class T>
void finish_row(const AttendParts& part, const float* sink, int32_t head_dim, float* out) {
  using V = typename T::V;
  float scale = 1;
  if (sink != nullptr && *sink != kNone) {
    const bool first = part.l[0] == 0;
    const float one = 1;
    MergeFactors factors;  // NOLINT(cppcoreguidelines-pro-type-member-init): merge_sums does
    merge_sums<T>(part.m, part.l, sink, &one, 1, factors);
    if (!first) scale = factors.a[0];
  }
  const V divisor = V::set1(part.l[0] == 0 ? 1 : part.l[0]);
  for (int64_t d = 0; d < head_dim; d += V::kLanes) {
    const V o = div(mul(V::load(part.o + d), V::set1(scale)), divisor);
    if (head_dim - d >= V::kLanes) {
      o.store(out + d);
    } else {
      o.store_first(out + d, head_dim - d);
    }
  }
}

template <class T>
constexpr AttendOps make_attend_ops() {
  return {.widen_parameters = widen_parameters<T>,
          .load_k = load_k<T>,
          .load_v = load_v<T>,
          .fold_block = fold_block<T>,
          .merge = merge<T>,
          .finish_row = finish_row<T>};
}

}  // namespace
}  // namespace larder::cpu
