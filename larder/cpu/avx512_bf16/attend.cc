// Attention where K and V are bf16, or codes, and the model computes in bf16: scores and outputs
// are sums of VDPBF16PS, which takes two products a lane. Words of 32 bits hold pairs: of two
// channels in q and K, of two keys in the weights and V. An odd key out, or one that a row does not
// see, is paired with zero, so a row's bits do not depend on its company, and no hidden V is met.
//
// The values of two keys are interleaved within 128 bits, as the instruction set has it, so parts
// hold the channels of each 32 in that order until finish_row turns them back.
#if defined(__AVX512BF16__)
#include "larder/cpu/avx512_bf16/pair_rows-inl.h"

namespace larder::cpu {
namespace {

void prepare_q_pairs(float* q, int64_t rows, int32_t head_dim) {
  for (int64_t r = 0; r < rows; ++r) round_to_pairs(q + r * head_dim, head_dim);
}

// The next block is asked for through all the work on this one: the first half of K while K is
// turned, the second while V is, V beside the two products. Decode waits for memory, and a core's
// own requests reach a quarter of its speed: more go out than the first cache can wait for. Its
// prefetcher has room for them, but follows only streams that come in order and not in bursts: so a
// few lines at a time (docs/performance.md), here two a step, half of V in the steps of a product.
struct FetchRows {
  const void* const* row = nullptr;
  const void* const* end = nullptr;
  int64_t bytes = 0, at = 0;
  void step() {
    if (row == end) return;
    const char* line = static_cast<const char*>(*row) + at;
    __builtin_prefetch(line, 0, 2);
    __builtin_prefetch(line + 64, 0, 2);
    at += 128;
    if (at >= bytes) at = 0, ++row;
  }
};

// Of the half of V that begins at `lane`; what is there already costs nothing.
FetchRows fetch_values(const BlockWork& work, int64_t lane) {
  const bool more = work.next != nullptr && work.next->present != 0;
  const KVLanes& v = (more ? work.next : work.block)->v;
  return {v.at + lane, v.at + lane + kPairs, row_bytes(v, lane, work.head_dim)};
}

// Codes that fold, in words as they are.
void load_k_words(const KVBlock& block, const KVBlock& next, int32_t head_dim, float* k_tile) {
  for (int64_t lane = 0; lane < kTileKeys; lane += V::kLanes) {
    for (int64_t i = lane / 2; next.present != 0 && i < (lane + V::kLanes) / 2; ++i)
      prefetch_row(next.k, i, head_dim);
    load_key_words<T>(block.k, lane, head_dim, k_tile + lane);
  }
}

// [head_dim / 2, 64] words.
void load_k_pairs(const KVBlock& block, const KVBlock& next, int32_t head_dim, float* k_tile) {
  if (block.k.folded) return load_k_words(block, next, head_dim, k_tile);
  const int64_t tiles = kTileKeys / V::kLanes * (head_dim / kWide);
  with_rows(block.k, head_dim, [&](const auto& row) {
    int64_t tile = 0;
    for (int64_t lane = 0; lane < kTileKeys; lane += V::kLanes) {
      for (int64_t d = 0; d < head_dim; d += kWide, ++tile) {
        for (int64_t i = tile * kPairs / tiles;
             next.present != 0 && i < (tile + 1) * kPairs / tiles; ++i)
          prefetch_row(next.k, i, head_dim);
        V rows[V::kLanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < V::kLanes; ++i) rows[i].v = _mm512_castsi512_ps(row(lane + i, d));
        transpose_avx512(rows);
#pragma GCC unroll 16
        for (int64_t i = 0; i < V::kLanes; ++i)
          rows[i].store(k_tile + (d / 2 + i) * kTileKeys + lane);
      }
    }
  });
}

// [32, head_dim] words. Lanes that hold no key hold anything, and no row sees them.
void load_v_pairs(const KVBlock& block, const KVBlock& next, int32_t head_dim,
                  int32_t /*padded_dim*/, float* v_tile) {
  with_rows(block.v, head_dim, [&](const auto& row) {
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      if (next.present != 0) prefetch_row(next.k, kPairs + pair, head_dim);
      float* to = v_tile + pair * head_dim;
      for (int64_t d = 0; d < head_dim; d += kWide) {
        const __m512i a = row(2 * pair, d), b = row(2 * pair + 1, d);
        _mm512_storeu_si512(to + d, _mm512_unpacklo_epi16(a, b));
        _mm512_storeu_si512(to + d + V::kLanes, _mm512_unpackhi_epi16(a, b));
      }
    }
  });
}

void score_pairs(const BlockWork& work, const VectorRange& range, BlockRows& rows) {
  for (int32_t r = 0; r < work.rows; ++r)
    for (int64_t i = 0; i < kTileKeys; i += V::kLanes) V::zero().store(rows.p[r] + i);
  if (work.block->k.folded) return score_codes<T>(work, range, rows.p, fetch_values(work, 0));
  multiply<T>({.a = work.q,
               .a_stride = work.head_dim,
               .b = work.k_tile + range.begin * V::kLanes,
               .b_stride = kTileKeys,
               .count = work.head_dim / 2,
               .c = rows.p[0] + range.begin * V::kLanes,
               .c_stride = kTileKeys},
              work.rows, range.end - range.begin, fetch_values(work, 0));
}

// One row's sum over one pair, of which it sees the keys of `bits`.
void add_pair(const float* weights, const float* values, uint64_t bits, int64_t channels,
              float* sum) {
  const auto seen = static_cast<int>((bits & 1) * 0xFFFFu | (bits >> 1) * 0xFFFF0000u);
  const __m512i mask = _mm512_set1_epi32(seen);
  for (int64_t d = 0; d < channels; d += V::kLanes) {
    const __m512i v = _mm512_and_si512(_mm512_loadu_si512(values + d), mask);
    T::multiply_add(V::set1(*weights), {_mm512_castsi512_ps(v)}, V::load(sum + d)).store(sum + d);
  }
}

// Pairs in order: runs that all rows see go together; where sights differ, each row takes its own.
void sum_pairs(const BlockWork& work, const BlockRows& rows, int64_t d, float (*sum)[kStrip]) {
  const int64_t channels = strip_width(work.head_dim, d);
  uint64_t any = 0, all = ~uint64_t{0};
  for (int32_t r = 0; r < work.rows; ++r) any |= rows.visible[r], all &= rows.visible[r];
  if (any == 0) return;
  const int64_t end = (63 - __builtin_clzll(any)) / 2 + 1;
  const auto together = [all](int64_t pair) { return (all >> 2 * pair & 3) == 3; };
  for (int64_t pair = __builtin_ctzll(any) / 2; pair < end;) {
    const int64_t begin = pair;
    while (pair < end && together(pair)) ++pair;
    if (pair > begin) {
      multiply<T>({.a = rows.p[0] + begin,
                   .a_stride = kTileKeys,
                   .b = work.v_tile + begin * work.head_dim + d,
                   .b_stride = work.head_dim,
                   .count = pair - begin,
                   .c = sum[0],
                   .c_stride = kStrip},
                  work.rows, channels / V::kLanes, fetch_values(work, kPairs));
      continue;
    }
    for (int32_t r = 0; r < work.rows; ++r) {
      const uint64_t bits = rows.visible[r] >> 2 * pair & 3;
      if (bits != 0)
        add_pair(rows.p[r] + pair, work.v_tile + pair * work.head_dim + d, bits, channels, sum[r]);
    }
    ++pair;
  }
}

void fold_pairs(const BlockWork& work) {
  uint64_t any = 0;
  for (int32_t r = 0; r < work.rows; ++r) any |= work.visible[r];
  if (any == 0) return;
  const VectorRange range = vectors_of<T>(any);
  const bool folded = work.block->v.folded;
  BlockRows rows;  // NOLINT(cppcoreguidelines-pro-type-member-init): see clear_sums
  float off[kTileRows]{};
  clear_sums<T>(rows);
  score_pairs(work, range, rows);
  for (int32_t r = 0; r < work.rows; ++r) {
    rows.visible[r] = work.visible[r];
    if (rows.visible[r] == 0) continue;
    weigh_row<T>(work, r, range, rows);
    if (folded) off[r] = fold_scales<T>(work.block->v, range, rows.visible[r], rows.p[r]);
    round_to_pairs(rows.p[r], kTileKeys);
  }
  merge_block<T>(work, rows, [&](const auto&, const auto&, int64_t d, float(*sum)[kStrip]) {
    sum_pairs(work, rows, d, sum);
    if (folded) subtract_offsets<T>(work, off, d, sum);
  });
}

// In place: the channels of each 32 in their own order.
void turn_back(float* o, int32_t head_dim) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int64_t d = 0; d < head_dim; d += kWide) {
    const __m512 a = _mm512_loadu_ps(o + d), b = _mm512_loadu_ps(o + d + V::kLanes);
    _mm512_storeu_ps(o + d, _mm512_permutex2var_ps(a, low, b));
    _mm512_storeu_ps(o + d + V::kLanes, _mm512_permutex2var_ps(a, high, b));
  }
}

void finish_pairs(const AttendParts& part, const float* sink, int32_t head_dim, float* out) {
  turn_back(part.o, head_dim);
  finish_row<T>(part, sink, head_dim, out);
}

}  // namespace

constinit const AttendOps kAttendBf16Dot = {.prepare_q = prepare_q_pairs,
                                            .needs_v_tile = true,
                                            .widen_parameters = widen_parameters<T>,
                                            .load_k = load_k_pairs,
                                            .load_v = load_v_pairs,
                                            .fold_block = fold_pairs,
                                            .merge = merge<T>,
                                            .finish_row = finish_pairs};

}  // namespace larder::cpu
#endif
