#if defined(__AVX2__)
#include "larder/cpu/simd/attend-inl.h"
#include "larder/cpu/simd/vec_avx2.h"

namespace larder::cpu {
namespace {

struct AttendAvx2 {
  using V = VecAvx2;
  static constexpr int kSums = 12;  // of 16 registers; 2 hold the other factor, 1 a broadcast

  static V::Mask mask(uint64_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane));
  }
  static uint64_t bits(V::Mask mask) { return static_cast<unsigned>(_mm256_movemask_ps(mask)); }
  static V operand(V v) { return v; }
  static V load_query(const float* q, int64_t d) { return V::load(q + d); }
  static V multiply_add(V a, V b, V c) { return fma(a, b, c); }
  static V load_masked(const float* p, V::Mask mask) {
    return {_mm256_maskload_ps(p, _mm256_castps_si256(mask))};
  }

  // The first and second bf16 of each 32-bit word, widened.
  static V low_bf16(V words) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words.v), 16))};
  }
  static V high_bf16(V words) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(words.v), high))};
  }

  // Bits [kShift, kShift + kBits) of each 32-bit word, as f32.
  template <int kShift, int kBits>
  static V field(V words) {
    __m256i bits = _mm256_castps_si256(words.v);
    if constexpr (kShift > 0) bits = _mm256_srli_epi32(bits, kShift);
    if constexpr (kShift + kBits < 32)
      bits = _mm256_and_si256(bits, _mm256_set1_epi32((1 << kBits) - 1));
    return {_mm256_cvtepi32_ps(bits)};
  }
  // Codes [d, d + 8) of a run, as f32; d is a multiple of 8.
  template <int kBits>
  static V codes(const void* run, int64_t d) {
    const char* at = static_cast<const char*>(run) + d * kBits / 8;
    if constexpr (kBits == 8) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
      return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))};
    } else {
      int32_t word = 0;
      __builtin_memcpy(&word, at, kBits);
      const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      const __m256i shift = _mm256_slli_epi32(lanes, kBits / 2);
      const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(word), shift);
      return {_mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32((1 << kBits) - 1)))};
    }
  }

  using Whole = __m256i;
  template <int kBits, int kField>
  static Whole code_pairs(V words) {
    __m256i codes = _mm256_castps_si256(words.v);
    if constexpr (kField > 0) codes = _mm256_srli_epi16(codes, kField * kBits);
    if constexpr ((kField + 1) * kBits < 16)
      codes = _mm256_and_si256(codes, _mm256_set1_epi16((1 << kBits) - 1));
    return codes;
  }
  static Whole broadcast_pair(const int16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
  }
  static Whole add_products(Whole sum, Whole a, Whole b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
  static V to_float(Whole whole) { return {_mm256_cvtepi32_ps(whole)}; }
  template <int kBits>
  static void store_steps(V x, int16_t* to) {
    const __m256i whole = _mm256_cvtps_epi32(x.v);
    const __m128i steps =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(steps, pair_order<kBits>()));
  }

  // 8 x 8: within 128-bit halves by pairs and pairs of pairs, then the halves themselves.
  static void transpose(V (&rows)[8]) {
    __m256 half[8];
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 4) {
      const __m256d a = pairs<0>(rows[i], rows[i + 1]), b = pairs<1>(rows[i], rows[i + 1]);
      const __m256d c = pairs<0>(rows[i + 2], rows[i + 3]), d = pairs<1>(rows[i + 2], rows[i + 3]);
      half[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
      half[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
      half[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
      half[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
      rows[i].v = _mm256_permute2f128_ps(half[i], half[i + 4], 0x20);
      rows[i + 4].v = _mm256_permute2f128_ps(half[i], half[i + 4], 0x31);
    }
  }

 private:
  template <int kHigh>
  static __m256d pairs(V a, V b) {
    return _mm256_castps_pd(kHigh ? _mm256_unpackhi_ps(a.v, b.v) : _mm256_unpacklo_ps(a.v, b.v));
  }
};

}  // namespace

constinit const AttendOps kAttendAvx2 = make_attend_ops<AttendAvx2>();

}  // namespace larder::cpu
#endif
