// The product that the avx512_vnni set adds to avx512: VPDPBUSD sums four products of an unsigned
// and a signed byte into 32 bits without saturation. Codes of int8 weights lie there as code + 128;
// -128 times the sum of x's codes takes that out of a sum.
#if defined(__AVX512VNNI__)
#include "larder/cpu/simd/codes-inl.h"
#include "larder/cpu/simd/vec_avx512.h"

namespace larder::cpu {
namespace {

struct VnniDot {
  using Vec = VecAvx512;
  using Whole = __m512i;
  static Whole zero() { return _mm512_setzero_si512(); }
  static Whole times128(Whole sum, int32_t offset) {
    return _mm512_add_epi32(_mm512_slli_epi32(sum, 7), _mm512_set1_epi32(offset));
  }
  static __m512i load(const char* p) { return _mm512_loadu_si512(p); }
  static __m512i low(__m512i both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
  static __m512i high(__m512i both) { return low(_mm512_srli_epi16(both, 4)); }
  static __m512i codes8(const char* p) { return load(p); }
  static Whole add4(Whole sum, __m512i w, int32_t x) {
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x));
  }
  static Whole add8(Whole sum, __m512i w, int32_t x) { return add4(sum, w, x); }
  static Vec to_float(Whole sum) { return {_mm512_cvtepi32_ps(sum)}; }
};

}  // namespace

// 32 registers: 12 whole sums, 12 sums, 2 of w, the scales.
void matmul_codes_vnni(const CodedRange& m, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                       int64_t panel_end) {
  matmul_of_codes<VnniDot, 12>(m, row_begin, row_end, panel_begin, panel_end);
}

}  // namespace larder::cpu
#endif
