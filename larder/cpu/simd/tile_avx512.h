// What attention's tiles need of AVX-512, whatever they are multiplied with. Only for files of
// larder/cpu/avx512*.
#pragma once

#include "larder/cpu/simd/vec_avx512.h"

namespace larder::cpu {
namespace {

template <int kHigh>
inline __m512d word_pairs(VecAvx512 a, VecAvx512 b) {
  return _mm512_castps_pd(kHigh ? _mm512_unpackhi_ps(a.v, b.v) : _mm512_unpacklo_ps(a.v, b.v));
}
template <int kChoice>
inline __m512 quarters(__m512 a, __m512 b) {
  return _mm512_shuffle_f32x4(a, b, kChoice);
}

// Within 128-bit quarters by pairs and pairs of pairs, then the quarters themselves. Inlined by
// force: a call would pass the vectors through memory.
[[gnu::always_inline]] inline void transpose_avx512(VecAvx512 (&rows)[16]) {
  __m512 quarter[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    const __m512d a = word_pairs<0>(rows[i], rows[i + 1]), b = word_pairs<1>(rows[i], rows[i + 1]);
    const __m512d c = word_pairs<0>(rows[i + 2], rows[i + 3]),
                  d = word_pairs<1>(rows[i + 2], rows[i + 3]);
    quarter[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    quarter[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    quarter[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    quarter[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    const __m512 even_low = quarters<0x88>(quarter[i], quarter[i + 4]);
    const __m512 odd_low = quarters<0xDD>(quarter[i], quarter[i + 4]);
    const __m512 even_high = quarters<0x88>(quarter[i + 8], quarter[i + 12]);
    const __m512 odd_high = quarters<0xDD>(quarter[i + 8], quarter[i + 12]);
    rows[i].v = quarters<0x88>(even_low, even_high);
    rows[i + 4].v = quarters<0x88>(odd_low, odd_high);
    rows[i + 8].v = quarters<0xDD>(even_low, even_high);
    rows[i + 12].v = quarters<0xDD>(odd_low, odd_high);
  }
}

struct TileAvx512 {
  using V = VecAvx512;
  static constexpr int kSums = 24;  // of 32 registers; 4 hold the other factor

  static V::Mask mask(uint64_t bits) { return static_cast<V::Mask>(bits); }
  static uint64_t bits(V::Mask mask) { return mask; }
  static V load_masked(const float* p, V::Mask mask) { return {_mm512_maskz_loadu_ps(mask, p)}; }

  // The first and second bf16 of each 32-bit word, widened.
  static V low_bf16(V words) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(words.v), 16))};
  }
  static V high_bf16(V words) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(words.v), high))};
  }

  // Bits [kShift, kShift + kBits) of each 32-bit word, as f32.
  template <int kShift, int kBits>
  static V field(V words) {
    __m512i bits = _mm512_castps_si512(words.v);
    if constexpr (kShift > 0) bits = _mm512_srli_epi32(bits, kShift);
    if constexpr (kShift + kBits < 32)
      bits = _mm512_and_si512(bits, _mm512_set1_epi32((1 << kBits) - 1));
    return {_mm512_cvtepi32_ps(bits)};
  }
  // Codes [d, d + 16) of a run, as f32; d is a multiple of 16.
  template <int kBits>
  static V codes(const void* run, int64_t d) {
    const char* at = static_cast<const char*>(run) + d * kBits / 8;
    if constexpr (kBits == 8) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
    } else if constexpr (kBits == 4) {
      // A byte in each 64-bit word, its halves then in the two 32-bit words.
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
      const __m512i low = _mm512_cvtepu8_epi64(bytes), high = _mm512_slli_epi64(low, 28);
      const __m512i halves = _mm512_and_si512(_mm512_or_si512(low, high), _mm512_set1_epi32(15));
      return {_mm512_cvtepi32_ps(halves)};
    } else {
      int32_t word;
      __builtin_memcpy(&word, at, 4);
      const __m512i shift =
          _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
      const __m512i codes = _mm512_srlv_epi32(_mm512_set1_epi32(word), shift);
      return {_mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(3)))};
    }
  }

  using Whole = __m512i;
  template <int kBits, int kField>
  static Whole code_pairs(V words) {
    __m512i codes = _mm512_castps_si512(words.v);
    if constexpr (kField > 0) codes = _mm512_srli_epi16(codes, kField * kBits);
    if constexpr ((kField + 1) * kBits < 16)
      codes = _mm512_and_si512(codes, _mm512_set1_epi16((1 << kBits) - 1));
    return codes;
  }
  static Whole broadcast_pair(const int16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
  }
  static Whole add_products(Whole sum, Whole a, Whole b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
  }
  static V to_float(Whole whole) { return {_mm512_cvtepi32_ps(whole)}; }
  template <int kBits>
  static void store_steps(V x, int16_t* to) {
    const __m256i steps = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x.v));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(to),
        _mm256_shuffle_epi8(steps, _mm256_broadcastsi128_si256(pair_order<kBits>())));
  }

  static void transpose(V (&rows)[16]) { transpose_avx512(rows); }
};

}  // namespace
}  // namespace larder::cpu
