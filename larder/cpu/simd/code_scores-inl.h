// Scores of keys in codes that fold (folded-inl.h), in whole numbers: q times the scales of its
// channels becomes a row of numbers of 15 bits and a sign, and their products with the codes are
// summed in 32 bits, exactly. score = step * sum of those - off, the sum over channels of q, with
// or without the scale, times the zero. K stays in words of codes, turned so that lanes are keys.
//
// T is the instruction set: T::Whole (32-bit numbers), T::code_pairs<bits, field>(words) (codes
// field and field + P of each word, P = 16 / bits, as 16-bit numbers), T::broadcast_pair(p),
// T::add_products(sum, a, b) (of both pairs), T::load_query(q, d), T::to_float(whole), and
// T::store_steps<bits>(v, p) (rounded to 16 bits; within each word's channels the order in which
// code_pairs wants them).
#pragma once

#include <cstdint>

#include "larder/cpu/simd/kv_codes-inl.h"
#include "larder/cpu/simd/tile_product-inl.h"

namespace larder::cpu {
namespace {

constexpr float kMostSteps = 32767;

// The rows of one block.
struct CodedQueries {
  alignas(64) int16_t q[kTileRows][kMostFoldedChannels];
  float step[kTileRows], off[kTileRows];
};

template <class T, int kBits>
void code_query(const float* q, const KVLanes& k, int64_t head_dim, int32_t r, CodedQueries& to) {
  using V = typename T::V;
  const float *scale = k.scale + k.group[0] * head_dim, *zero = k.zero + k.group[0] * head_dim;
  // A NaN or an infinity reaches the score through `poison`, whatever happens to it elsewhere.
  V largest = V::zero(), poison = V::zero(), zeros = V::zero();
  for (int64_t d = 0; d < head_dim; d += V::kLanes) {
    const V scaled = mul(T::load_query(q, d), V::load(scale + d));
    largest = max(largest, abs(scaled));
    poison = fma(scaled, V::zero(), poison);
  }
  const float most = reduce_max(largest);
  const V steps = V::set1(most >= FLT_MIN ? kMostSteps / most : 0);
  to.step[r] = most >= FLT_MIN ? most / kMostSteps : 0;
  for (int64_t d = 0; d < head_dim; d += V::kLanes) {
    const V of_q = T::load_query(q, d);
    const V whole = round(mul(mul(of_q, V::load(scale + d)), steps));
    T::template store_steps<kBits>(whole, to.q[r] + d);
    zeros =
        fma(k.codes->zero_first ? mul(whole, V::set1(to.step[r])) : of_q, V::load(zero + d), zeros);
  }
  to.off[r] = reduce_add(add(zeros, poison));
}

template <class T, int kRows, int kVectors>
using WholeSums = typename T::Whole[kRows][kVectors];

template <class T, int kBits, int kRows, int kVectors, int kField = 0, class Fetch>
[[gnu::always_inline]] inline void add_fields(const float* words, const int16_t* q, Fetch& fetch,
                                              WholeSums<T, kRows, kVectors>& sum) {
  using V = typename T::V;
  fetch.step();
  typename T::Whole codes[kVectors];
#pragma GCC unroll 8
  for (int n = 0; n < kVectors; ++n)
    codes[n] = T::template code_pairs<kBits, kField>(V::load(words + n * V::kLanes));
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const auto pair = T::broadcast_pair(q + int64_t{m} * kMostFoldedChannels + int64_t{2} * kField);
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n] = T::add_products(sum[m][n], codes[n], pair);
  }
  if constexpr (kField + 1 < 16 / kBits)
    add_fields<T, kBits, kRows, kVectors, kField + 1>(words, q, fetch, sum);
}

// What score_codes reads and writes: kVectors of lanes from `words` on, [head_dim * bits / 32, 64].
struct CodeScores {
  const float* words;
  int64_t count;  // of words
  const CodedQueries* queries;
  float* p;  // [rows, 64]
};

template <class T, int kBits, int kRows, int kVectors, class Fetch>
void score_code_tile(const CodeScores& s, Fetch& fetch) {
  using V = typename T::V;
  WholeSums<T, kRows, kVectors> sum{};
  const float* words = s.words;
  const int16_t* q = s.queries->q[0];
  for (int64_t left = s.count; left > 0; --left, words += kTileKeys, q += 32 / kBits) {
    add_fields<T, kBits, kRows, kVectors>(words, q, fetch, sum);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    const V step = V::set1(s.queries->step[m]), off = V::set1(s.queries->off[m]);
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n)
      sub(mul(T::to_float(sum[m][n]), step), off)
          .store(s.p + int64_t{m} * kTileKeys + n * V::kLanes);
  }
}

template <class T, int kBits, int kRows, class Fetch>
void score_code_rows(CodeScores s, int64_t vectors, Fetch& fetch) {
  constexpr int kAtOnce = T::kSums >= 24 || kRows <= 2 ? 4 : 2;  // sums, codes, a pair, a product
  constexpr int64_t kStep = kAtOnce * T::V::kLanes;
  for (; vectors >= kAtOnce; vectors -= kAtOnce, s.words += kStep, s.p += kStep)
    score_code_tile<T, kBits, kRows, kAtOnce>(s, fetch);
  for (; vectors > 0; --vectors, s.words += T::V::kLanes, s.p += T::V::kLanes)
    score_code_tile<T, kBits, kRows, 1>(s, fetch);
}

template <class T, int kBits, class Fetch>
void score_codes_of(const CodeScores& s, int32_t rows, int64_t vectors, Fetch fetch) {
  static_assert(kTileRows == 6);
  switch (rows) {
    case 1:
      return score_code_rows<T, kBits, 1>(s, vectors, fetch);
    case 2:
      return score_code_rows<T, kBits, 2>(s, vectors, fetch);
    case 3:
      return score_code_rows<T, kBits, 3>(s, vectors, fetch);
    case 4:
      return score_code_rows<T, kBits, 4>(s, vectors, fetch);
    case 5:
      return score_code_rows<T, kBits, 5>(s, vectors, fetch);
    default:
      return score_code_rows<T, kBits, 6>(s, vectors, fetch);
  }
}

// p = q.k of every row, in the vectors of `range`.
template <class T, class Fetch = NoFetch>
void score_codes(const BlockWork& work, const VectorRange& range, float (*p)[kTileKeys],
                 Fetch fetch = {}) {
  const KVLanes& k = work.block->k;
  const int64_t lane = range.begin * T::V::kLanes;
  with_plain(*k.codes, [&](auto coding) {
    constexpr int kBits = decltype(coding)::kBits;
    CodedQueries queries;  // NOLINT(cppcoreguidelines-pro-type-member-init): code_query does
    for (int32_t r = 0; r < work.rows; ++r)
      code_query<T, kBits>(work.q + int64_t{r} * work.head_dim, k, work.head_dim, r, queries);
    score_codes_of<T, kBits>(
        {work.k_tile + lane, work.head_dim * kBits / 32, &queries, p[0] + lane}, work.rows,
        range.end - range.begin, fetch);
  });
}

}  // namespace
}  // namespace larder::cpu
