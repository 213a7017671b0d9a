// Four f32 lanes: what a transposing reduction of four vectors gives. In an anonymous namespace as
// all code of the ISA folders is: each object keeps its own copy, and the linker can never take a
// copy compiled with wider instructions for everyone (docs/numerics.md, "Sealing").
#pragma once

#include <immintrin.h>

namespace larder::cpu {
namespace {

struct Vec4 {
  __m128 v;

  static Vec4 load(const float* p) { return {_mm_loadu_ps(p)}; }
  void store(float* p) const { _mm_storeu_ps(p, v); }
  friend Vec4 add(Vec4 a, Vec4 b) { return {_mm_add_ps(a.v, b.v)}; }
};

// For 8 numbers of 16 bits in the order of channels: those that come out of one word of codes of
// kBits side by side (code_scores-inl.h), as a byte shuffle wants it.
template <int kBits>
inline __m128i pair_order() {
  if constexpr (kBits == 8)
    return _mm_setr_epi16(0x100, 0x504, 0x302, 0x706, 0x908, 0xD0C, 0xB0A, 0xF0E);
  return _mm_setr_epi16(0x100, 0x908, 0x302, 0xB0A, 0x504, 0xD0C, 0x706, 0xF0E);
}

// (0 + 2) + (1 + 3): the end of every reduction tree.
inline float reduce_last4(__m128 v) {
  const __m128 pairs = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}

inline float reduce_last4_max(__m128 v) {
  const __m128 pairs = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}

}  // namespace
}  // namespace larder::cpu
