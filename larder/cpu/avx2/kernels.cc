// The avx2 set: eight lanes, FMA, F16C.
#if defined(__AVX2__)
#include "larder/cpu/simd/convert-inl.h"
#include "larder/cpu/simd/matmul-inl.h"
#include "larder/cpu/simd/range_ops.h"
#include "larder/cpu/simd/rows-inl.h"
#include "larder/cpu/simd/vec_avx2.h"

namespace larder::cpu {

constinit const RangeOps kAvx2Ops = {
    .matmul = matmul_f32<VecAvx2, 3>,  // 16 registers: 12 sums, 3 of x, 1 of w
    .matmul_codes = matmul_codes_avx2,
    .code_row = code_row_avx2,
    .round = round_row<VecAvx2>,
    .rms_norm = rms_norm_row<VecAvx2>,
    .rope = rope_pairs<VecAvx2>,
    .silu_mul = silu_mul_row<VecAvx2>,
    .gelu_tanh_mul = gelu_tanh_mul_row<VecAvx2>,
    .gelu_mul = gelu_mul_row<VecAvx2>,
    .softcap = softcap_row<VecAvx2>,
    .store = store_row<VecAvx2>,
    .load = load_row<VecAvx2>,
    .exp = exp_row<VecAvx2>,
    .tanh = tanh_row<VecAvx2>,
    .erf = erf_row<VecAvx2>,
};

}  // namespace larder::cpu
#endif
