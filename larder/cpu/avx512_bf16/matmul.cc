// The product that the avx512_bf16 set adds to avx512: bf16 activations with bf16 weights through
// VDPBF16PS, 32 elements a step. Lane i of the accumulator takes the elements 2i and 2i + 1 of each
// step, as the instruction does: subnormal inputs and results count as zero, every sum is rounded
// to nearest even whatever the thread's mode.
#if defined(__AVX512BF16__)
#include "larder/cpu/simd/matmul-inl.h"
#include "larder/cpu/simd/range_ops.h"
#include "larder/cpu/simd/vec_avx512.h"

namespace larder::cpu {
namespace {

struct Bf16Dot {
  using Vec = VecAvx512;
  using Lanes = __m512i;
  static constexpr int64_t kStep = 32, kXSize = 2, kWSize = 2;
  static Lanes load_x(const char* p) { return _mm512_loadu_si512(p); }
  static Lanes load_x_first(const char* p, int64_t n) {
    return _mm512_maskz_loadu_epi16((__mmask32{1} << static_cast<unsigned>(n)) - 1u, p);
  }
  static Lanes load_w(const char* p) { return load_x(p); }
  static Lanes load_w_first(const char* p, int64_t n) { return load_x_first(p, n); }
  static Vec dot(Vec sum, Lanes x, Lanes w) {
    return {
        _mm512_dpbf16_ps(sum.v, __builtin_bit_cast(__m512bh, x), __builtin_bit_cast(__m512bh, w))};
  }
};

}  // namespace

bool matmul_bf16_dot(const MatmulRange& m, int64_t row_begin, int64_t row_end, int64_t col_begin,
                     int64_t col_end) {
  matmul_pair<Bf16Dot, 6>(m, row_begin, row_end, col_begin, col_end);
  return true;
}

}  // namespace larder::cpu
#endif
