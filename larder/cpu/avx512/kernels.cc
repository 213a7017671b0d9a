// The avx512 set: sixteen lanes of AVX-512 F, BW, DQ, VL.
#if defined(__AVX512F__)
#include "larder/cpu/simd/convert-inl.h"
#include "larder/cpu/simd/matmul-inl.h"
#include "larder/cpu/simd/range_ops.h"
#include "larder/cpu/simd/rows-inl.h"
#include "larder/cpu/simd/vec_avx512.h"

namespace larder::cpu {

constinit const RangeOps kAvx512Ops = {
    .matmul = matmul_f32<VecAvx512, 6>,  // 32 registers: 24 sums, 6 of x, 1 of w
    .matmul_codes = matmul_codes_avx512,
    .code_row = code_row_avx512,
    .round = round_row<VecAvx512>,
    .rms_norm = rms_norm_row<VecAvx512>,
    .rope = rope_pairs<VecAvx512>,
    .silu_mul = silu_mul_row<VecAvx512>,
    .gelu_tanh_mul = gelu_tanh_mul_row<VecAvx512>,
    .gelu_mul = gelu_mul_row<VecAvx512>,
    .softcap = softcap_row<VecAvx512>,
    .store = store_row<VecAvx512>,
    .load = load_row<VecAvx512>,
    .exp = exp_row<VecAvx512>,
    .tanh = tanh_row<VecAvx512>,
    .erf = erf_row<VecAvx512>,
};

}  // namespace larder::cpu
#endif
