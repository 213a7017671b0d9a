// Codes without VNNI: VPMADDUBSW saturates at 16 bits, so an int8 weight is parted into magnitude
// and sign, and no pair of products is above 2 * 127 * 127.
#if defined(__AVX512F__)
#include "larder/cpu/simd/code_row-inl.h"
#include "larder/cpu/simd/codes-inl.h"
#include "larder/cpu/simd/vec_avx512.h"

namespace larder::cpu {
namespace {

struct Avx512Dot {
  using Vec = VecAvx512;
  using Whole = __m512i;
  struct Codes8 {
    __m512i magnitude;
    __mmask64 negative;
  };
  static Whole zero() { return _mm512_setzero_si512(); }
  static Whole times128(Whole sum, int32_t) { return _mm512_slli_epi32(sum, 7); }
  static __m512i load(const char* p) { return _mm512_loadu_si512(p); }
  static __m512i low(__m512i both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
  static __m512i high(__m512i both) { return low(_mm512_srli_epi16(both, 4)); }
  static Codes8 codes8(const char* p) {
    const __m512i code = _mm512_xor_si512(load(p), _mm512_set1_epi8(INT8_MIN));
    return {_mm512_abs_epi8(code), _mm512_movepi8_mask(code)};
  }
  static Whole add4(Whole sum, __m512i w, int32_t x) {
    return products(sum, w, _mm512_set1_epi32(x));
  }
  static Whole add8(Whole sum, Codes8 w, int32_t x) {
    const __m512i plain = _mm512_set1_epi32(x);
    return products(sum, w.magnitude,
                    _mm512_mask_sub_epi8(plain, w.negative, _mm512_setzero_si512(), plain));
  }
  static Vec to_float(Whole sum) { return {_mm512_cvtepi32_ps(sum)}; }

 private:
  static Whole products(Whole sum, __m512i w, __m512i x) {
    return _mm512_add_epi32(sum,
                            _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
  }
};

}  // namespace

void matmul_codes_avx512(const CodedRange& m, int64_t row_begin, int64_t row_end,
                         int64_t panel_begin, int64_t panel_end) {
  matmul_of_codes<Avx512Dot, 6>(m, row_begin, row_end, panel_begin, panel_end);
}

void code_row_avx512(CodedRowGroup* out, int64_t row, const float* x, int64_t k) {
  code_row(out, row, x, k);
}

}  // namespace larder::cpu
#endif
