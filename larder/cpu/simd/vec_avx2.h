// Eight f32 lanes of AVX2 with FMA and F16C. Only for files of larder/cpu/avx2: the anonymous
// namespace seals it there, see vec4.h. Pointers may have any alignment. The *_first forms take the
// first n lanes, 0 <= n <= kLanes; a load gives 0 in the others and touches no memory behind them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "larder/cpu/simd/vec4.h"

namespace larder::cpu {
namespace {

struct VecAvx2 {
  static constexpr int64_t kLanes = 8;
  using Mask = __m256;
  __m256 v;

  static VecAvx2 zero() { return {_mm256_setzero_ps()}; }
  static VecAvx2 set1(float x) { return {_mm256_set1_ps(x)}; }

  static VecAvx2 load(const void* p) { return {_mm256_loadu_ps(static_cast<const float*>(p))}; }
  static VecAvx2 load_first(const void* p, int64_t n) {
    return {_mm256_maskload_ps(static_cast<const float*>(p), first(n))};
  }
  void store(void* p) const { _mm256_storeu_ps(static_cast<float*>(p), v); }
  void store_first(void* p, int64_t n) const {
    _mm256_maskstore_ps(static_cast<float*>(p), first(n), v);
  }

  static VecAvx2 load_bf16(const void* p) { return widen_bf16(load16(p)); }
  static VecAvx2 load_bf16_first(const void* p, int64_t n) { return widen_bf16(load16(p, n)); }
  // Rounds to nearest even; a NaN stays a NaN, made quiet.
  void store_bf16(void* p) const { store16(p, narrow_bf16()); }
  void store_bf16_first(void* p, int64_t n) const { store16(p, narrow_bf16(), n); }
  VecAvx2 round_bf16() const { return widen_bf16(narrow_bf16()); }

  static VecAvx2 load_f16(const void* p) { return {_mm256_cvtph_ps(load16(p))}; }
  static VecAvx2 load_f16_first(const void* p, int64_t n) {
    return {_mm256_cvtph_ps(load16(p, n))};
  }
  void store_f16(void* p) const { store16(p, narrow_f16()); }
  void store_f16_first(void* p, int64_t n) const { store16(p, narrow_f16(), n); }
  VecAvx2 round_f16() const { return {_mm256_cvtph_ps(narrow_f16())}; }

  friend VecAvx2 add(VecAvx2 a, VecAvx2 b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend VecAvx2 sub(VecAvx2 a, VecAvx2 b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend VecAvx2 mul(VecAvx2 a, VecAvx2 b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend VecAvx2 div(VecAvx2 a, VecAvx2 b) { return {_mm256_div_ps(a.v, b.v)}; }
  // a * b + c, rounded once.
  friend VecAvx2 fma(VecAvx2 a, VecAvx2 b, VecAvx2 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  // Where either is NaN: b.
  friend VecAvx2 max(VecAvx2 a, VecAvx2 b) { return {_mm256_max_ps(a.v, b.v)}; }
  friend VecAvx2 min(VecAvx2 a, VecAvx2 b) { return {_mm256_min_ps(a.v, b.v)}; }
  friend VecAvx2 abs(VecAvx2 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
  // The magnitude of a with the sign of b.
  friend VecAvx2 copysign(VecAvx2 a, VecAvx2 b) {
    return {_mm256_or_ps(abs(a).v, _mm256_and_ps(_mm256_set1_ps(-0.0f), b.v))};
  }
  // To the nearest whole number, ties to even.
  friend VecAvx2 round(VecAvx2 a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // a * 2^n, rounded once, for whole n in [-250, 250] and |a| in [0.5, 2): 2^n in two factors, the
  // first of which only moves the exponent.
  friend VecAvx2 scale_by_pow2(VecAvx2 a, VecAvx2 n) {
    const __m256i whole = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(whole, 1);
    return {_mm256_mul_ps(_mm256_mul_ps(a.v, pow2(half)), pow2(_mm256_sub_epi32(whole, half)))};
  }
  // False where either is NaN.
  friend Mask less(VecAvx2 a, VecAvx2 b) { return _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ); }
  static VecAvx2 select(Mask mask, VecAvx2 yes, VecAvx2 no) {
    return {_mm256_blendv_ps(no.v, yes.v, mask)};
  }

  // The fixed tree: lanes i and i + 4, then (0 + 2) + (1 + 3).
  friend float reduce_add(VecAvx2 a) {
    return reduce_last4(_mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1)));
  }
  friend float reduce_max(VecAvx2 a) {
    return reduce_last4_max(_mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1)));
  }
  // {reduce_add(a), reduce_add(b), reduce_add(c), reduce_add(d)}, bit for bit, in half the work.
  friend Vec4 reduce_add4(VecAvx2 a, VecAvx2 b, VecAvx2 c, VecAvx2 d) {
    const __m256 ab = fold(a.v, b.v), cd = fold(c.v, d.v);  // four lanes of a, b; of c, d
    const __m256 twos = _mm256_add_ps(_mm256_unpacklo_ps(ab, cd), _mm256_unpackhi_ps(ab, cd));
    const __m256 sums = _mm256_add_ps(twos, _mm256_permute_ps(twos, 0x4E));  // a c . . | b d . .
    return {_mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1))};
  }

 private:
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static __m128i load16(const void* p, int64_t n) {
    __m128i lanes = _mm_setzero_si128();
    __builtin_memcpy(&lanes, p, static_cast<size_t>(n) * 2);
    return lanes;
  }
  static void store16(void* p, __m128i lanes) { _mm_storeu_si128(static_cast<__m128i*>(p), lanes); }
  static void store16(void* p, __m128i lanes, int64_t n) {
    __builtin_memcpy(p, &lanes, static_cast<size_t>(n) * 2);
  }
  static VecAvx2 widen_bf16(__m128i b) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16))};
  }
  __m128i narrow_bf16() const {
    const __m256i whole = _mm256_castps_si256(v), high = _mm256_srli_epi32(whole, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i narrow = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(narrow), _mm256_extracti128_si256(narrow, 1));
  }
  __m128i narrow_f16() const { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
  static __m256 pow2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static __m256 fold(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
};

}  // namespace
}  // namespace larder::cpu
