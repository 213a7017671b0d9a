// Codes with eight rows of w at once. VPMADDUBSW saturates at 16 bits, so an int8 weight is parted
// into magnitude and sign, and no pair of products is above 2 * 127 * 127.
#if defined(__AVX2__)
#include "larder/cpu/simd/code_row-inl.h"
#include "larder/cpu/simd/codes-inl.h"
#include "larder/cpu/simd/vec_avx2.h"

namespace larder::cpu {
namespace {

struct Avx2Dot {
  using Vec = VecAvx2;
  using Whole = __m256i;
  struct Codes8 {
    __m256i magnitude, code;
  };
  static Whole zero() { return _mm256_setzero_si256(); }
  static Whole times128(Whole sum, int32_t) { return _mm256_slli_epi32(sum, 7); }
  static __m256i load(const char* p) {
    __m256i bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return bytes;
  }
  static __m256i low(__m256i both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
  static __m256i high(__m256i both) { return low(_mm256_srli_epi16(both, 4)); }
  static Codes8 codes8(const char* p) {
    const __m256i code = _mm256_xor_si256(load(p), _mm256_set1_epi8(INT8_MIN));
    return {_mm256_abs_epi8(code), code};
  }
  static Whole add4(Whole sum, __m256i w, int32_t x) {
    return products(sum, w, _mm256_set1_epi32(x));
  }
  static Whole add8(Whole sum, Codes8 w, int32_t x) {
    return products(sum, w.magnitude, _mm256_sign_epi8(_mm256_set1_epi32(x), w.code));
  }
  static Vec to_float(Whole sum) { return {_mm256_cvtepi32_ps(sum)}; }

 private:
  static Whole products(Whole sum, __m256i w, __m256i x) {
    return _mm256_add_epi32(sum,
                            _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
  }
};

}  // namespace

void matmul_codes_avx2(const CodedRange& m, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                       int64_t panel_end) {
  matmul_of_codes<Avx2Dot, 4>(m, row_begin, row_end, panel_begin, panel_end);
}

void code_row_avx2(CodedRowGroup* out, int64_t row, const float* x, int64_t k) {
  code_row(out, row, x, k);
}

}  // namespace larder::cpu
#endif
