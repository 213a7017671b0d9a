// Sixteen f32 lanes of AVX-512 (F, BW, DQ, VL). Only for files of larder/cpu/avx512*: the anonymous
// namespace seals it there, see vec4.h. Pointers may have any alignment. The *_first forms take the
// first n lanes, 0 <= n <= kLanes; a load gives 0 in the others and touches no memory behind them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "larder/cpu/simd/vec4.h"

namespace larder::cpu {
namespace {

struct VecAvx512 {
  static constexpr int64_t kLanes = 16;
  using Mask = __mmask16;
  __m512 v;

  static Mask first(int64_t n) { return static_cast<Mask>((1u << static_cast<unsigned>(n)) - 1u); }
  static VecAvx512 zero() { return {_mm512_setzero_ps()}; }
  static VecAvx512 set1(float x) { return {_mm512_set1_ps(x)}; }

  static VecAvx512 load(const void* p) { return {_mm512_loadu_ps(p)}; }
  static VecAvx512 load_first(const void* p, int64_t n) {
    return {_mm512_maskz_loadu_ps(first(n), p)};
  }
  void store(void* p) const { _mm512_storeu_ps(p, v); }
  void store_first(void* p, int64_t n) const { _mm512_mask_storeu_ps(p, first(n), v); }

  static VecAvx512 load_bf16(const void* p) { return widen_bf16(_mm256_loadu_si256(bits(p))); }
  static VecAvx512 load_bf16_first(const void* p, int64_t n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
  }
  // Rounds to nearest even; a NaN stays a NaN, made quiet.
  void store_bf16(void* p) const { _mm256_storeu_si256(bits(p), narrow_bf16()); }
  void store_bf16_first(void* p, int64_t n) const {
    _mm256_mask_storeu_epi16(p, first(n), narrow_bf16());
  }
  VecAvx512 round_bf16() const { return widen_bf16(narrow_bf16()); }

  static VecAvx512 load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(bits(p)))};
  }
  static VecAvx512 load_f16_first(const void* p, int64_t n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))};
  }
  void store_f16(void* p) const { _mm256_storeu_si256(bits(p), narrow_f16()); }
  void store_f16_first(void* p, int64_t n) const {
    _mm256_mask_storeu_epi16(p, first(n), narrow_f16());
  }
  VecAvx512 round_f16() const { return {_mm512_cvtph_ps(narrow_f16())}; }

  friend VecAvx512 add(VecAvx512 a, VecAvx512 b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend VecAvx512 sub(VecAvx512 a, VecAvx512 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend VecAvx512 mul(VecAvx512 a, VecAvx512 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend VecAvx512 div(VecAvx512 a, VecAvx512 b) { return {_mm512_div_ps(a.v, b.v)}; }
  // a * b + c, rounded once.
  friend VecAvx512 fma(VecAvx512 a, VecAvx512 b, VecAvx512 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  // Where either is NaN: b.
  friend VecAvx512 max(VecAvx512 a, VecAvx512 b) { return {_mm512_max_ps(a.v, b.v)}; }
  friend VecAvx512 min(VecAvx512 a, VecAvx512 b) { return {_mm512_min_ps(a.v, b.v)}; }
  friend VecAvx512 abs(VecAvx512 a) { return {_mm512_abs_ps(a.v)}; }
  // The magnitude of a with the sign of b.
  friend VecAvx512 copysign(VecAvx512 a, VecAvx512 b) {
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return {_mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(b.v), _mm512_castps_si512(a.v), 0xCA))};
  }
  // To the nearest whole number, ties to even.
  friend VecAvx512 round(VecAvx512 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
  // a * 2^n, rounded once, for whole n.
  friend VecAvx512 scale_by_pow2(VecAvx512 a, VecAvx512 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
  // False where either is NaN.
  friend Mask less(VecAvx512 a, VecAvx512 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
  static VecAvx512 select(Mask mask, VecAvx512 yes, VecAvx512 no) {
    return {_mm512_mask_blend_ps(mask, no.v, yes.v)};
  }

  // The fixed tree: lanes i and i + 8, then i and i + 4, then (0 + 2) + (1 + 3).
  friend float reduce_add(VecAvx512 a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    return reduce_last4(_mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
  }
  friend float reduce_max(VecAvx512 a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    return reduce_last4_max(
        _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
  }
  // {reduce_add(a), reduce_add(b), reduce_add(c), reduce_add(d)}, bit for bit, in half the work.
  friend Vec4 reduce_add4(VecAvx512 a, VecAvx512 b, VecAvx512 c, VecAvx512 d) {
    const __m512 ab = fold<0x44, 0xEE>(a.v, b.v), cd = fold<0x44, 0xEE>(c.v, d.v);
    const __m512 all = fold<0x88, 0xDD>(ab, cd);  // four lanes of a, of b, of c, of d
    const __m512 pairs = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4E));
    const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xB1));
    return {_mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums))};
  }

 private:
  static const __m256i* bits(const void* p) { return static_cast<const __m256i*>(p); }
  static __m256i* bits(void* p) { return static_cast<__m256i*>(p); }
  static VecAvx512 widen_bf16(__m256i b) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16))};
  }
  __m256i narrow_bf16() const {
    const __m512i whole = _mm512_castps_si512(v), high = _mm512_srli_epi32(whole, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(0x7FFF)), odd);
    const Mask nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, high, _mm512_set1_epi32(0x40)));
  }
  __m256i narrow_f16() const { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
  template <int kLow, int kHigh>
  static __m512 fold(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, kLow), _mm512_shuffle_f32x4(a, b, kHigh));
  }
};

}  // namespace
}  // namespace larder::cpu
