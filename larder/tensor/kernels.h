// The kernel table: what a device implements. One constant table a kernel set (reference, avx2,
// avx512, avx512_vnni, avx512_bf16, amx_bf16). Shapes are checked by the caller (attention/,
// models/); kernels do not throw and do not allocate.
//
// The order of every sum depends on the row's own positions only: a set documents one order over K
// for `matmul` and one cut of positions for `attend`, the same for one row as for many and at any
// thread count (docs/numerics.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "larder/tensor/coded_matrix.h"
#include "larder/tensor/exec.h"
#include "larder/tensor/kv_view.h"

namespace larder {

// out[r, n] = (residual ? residual[r, n] : 0) + sum_k x[r, k] * w[n, k] + (bias ? bias[n] : 0)
// The sum comes first, then the bias is added, then the residual.
struct MatmulArgs {
  TensorView out;  // [rows, n] f32, last axis contiguous
  TensorView x;    // [rows, k] f32 or bf16 as matmul_input says, last axis contiguous
  TensorView w;    // [n, k] f32, bf16 or f16, contiguous, as the file has it; any alignment
  const float* bias = nullptr;      // [n]
  const float* residual = nullptr;  // [rows, n] with out's row stride; may be out itself
  void* room = nullptr;             // matmul_room() bytes, where the set wants any
};

// The same in codes: a group's products are summed as whole numbers, then groups fold in order.
// int8: sum = fma(scale_w * scale_x, whole, sum); int4, with high parts of x alone: sum =
// fma(scale_w * high_scale_x, whole, sum), sum = fma(minimum_w, high_sum_x, sum). The same bits in
// every set.
struct MatmulCodesArgs {
  TensorView out;                   // [rows, n] f32, last axis contiguous
  CodedRows x;                      // what code_rows wrote
  CodedMatrix w;                    // [n, k]
  const float* bias = nullptr;      // [n]
  const float* residual = nullptr;  // [rows, n] with out's row stride; may be out itself
};

// Attention of one step over a view. score = scale * q.k; softcap; + bias; mask; softmax with the
// sink; times v. Query at position p sees the key at position j iff: j is in the view, key_mask
// allows it, j <= p when causal, p - j < window when window > 0, j >= chunk * floor(p / chunk) when
// chunk > 0. A query that sees no key gives zeros and lse -inf (or the sink's logit).
struct AttendArgs {
  TensorView out;  // [total_q, num_heads, head_dim] f32, heads and channels contiguous
  TensorView q;    // the same shape, f32
  int32_t batch = 0;
  const int32_t* q_start = nullptr;     // [batch + 1]
  const int64_t* q_position = nullptr;  // [total_q]; may be negative
  KVView kv;
  // What the model computes in. bf16: a set with a bf16 dot product may round q and the weights to
  // bf16 where K and V are bf16.
  DType compute = DType::kF32;
  float scale = 1;
  float softcap = 0;   // cap * tanh(score / cap); 0 = none
  int64_t window = 0;  // 0 = none
  int64_t chunk = 0;   // chunked attention (Llama 4); 0 = none
  bool causal = true;
  const float* sinks = nullptr;  // [num_heads] logits that take part in the denominator only
  // Additive, f32. Element (row b, head h, i-th query of the row, key at position j) is at
  // bias[b * bias_row + h * bias_head + i * bias_query + j]; a stride of 0 repeats.
  const float* bias = nullptr;
  int64_t bias_row = 0, bias_head = 0, bias_query = 0;
  const uint8_t* key_mask = nullptr;  // [batch, key_mask_row] by key position; 0 = hidden
  int64_t key_mask_row = 0;
  float* lse = nullptr;  // [total_q, num_heads]
};

// Positions are cut at multiples of these, by absolute position, whatever the page, ring, window,
// chunk or threads (design promise 2): blocks fold left to right into a span, spans left to right,
// the sink comes last.
constexpr int kAttendBlock = 64;
constexpr int kAttendSpan = 512;

enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu };

struct Kernels {
  const char* name;
  // How `matmul` wants x for weights of this dtype when activations are of dtype `compute`: bf16
  // where the set has a bf16 dot product and both are bf16, else f32 (holding values rounded to
  // `compute`).
  DType (*matmul_input)(DType compute, DType weight);
  // Bytes that a call of `matmul` wants beside x [rows, k] for another layout of it; they may serve
  // one call after the other.
  size_t (*matmul_room)(int64_t rows, int64_t k, DType x, DType weight);
  // One product, or several with as many rows of x each (often the same x): threads meet once for
  // all of them.
  void (*matmul)(const Exec&, std::span<const MatmulArgs>);
  // x [rows, k] f32, last axis contiguous, in codes, row by row: scale = a group's largest |x| /
  // 16256, code = x * (16256 / largest), rounded, ties to even; high = (code + 64) / 128 rounded
  // down. Where scale is subnormal: zeros; a NaN or an infinity: scale NaN, codes 0. The same bits
  // in every set. Needs: out.rows and out.k are x's.
  void (*code_rows)(const Exec&, const CodedRows& out, const TensorView& x);
  // As matmul. The products must have x of one shape, often the same.
  void (*matmul_codes)(const Exec&, std::span<const MatmulCodesArgs>);
  // out = x rounded to `compute`, stored as out.dtype (f32, or bf16 when compute is bf16). [rows,
  // n], f32 in.
  void (*round_rows)(const Exec&, const TensorView& out, const TensorView& x, DType compute);
  // out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * (weight + weight_offset). x, out: [rows, n] f32, may
  // be the same.
  void (*rms_norm)(const Exec&, const TensorView& out, const TensorView& x, const float* weight,
                   float weight_offset, float eps);
  // x [tokens, heads, head_dim] f32 in place; the first 2 * half channels of a head turn, pairs (i,
  // i + half). cos_sin: [tokens, 2, half] f32.
  void (*rope)(const Exec&, const TensorView& x, const float* cos_sin, int64_t half);
  // gate[r, i] = act(gate[r, i]) * up[r, i]; both [rows, n] f32.
  void (*gate_mul)(const Exec&, const TensorView& gate, const TensorView& up, Activation act);
  // x[i] = cap * tanh(x[i] / cap) over `count` contiguous elements.
  void (*softcap)(const Exec&, float* x, int64_t count, float cap);
  // Converts `count` contiguous f32 to `dtype` at `out` (any alignment): storing into a cache.
  void (*store)(void* out, DType dtype, const float* x, int64_t count);
  // And back.
  void (*load)(float* out, const void* x, DType dtype, int64_t count);
  // Fused attention: online softmax, never builds the score matrix. Takes attend_scratch() bytes
  // from the arena.
  void (*attend)(const Exec&, const AttendArgs&);
  size_t (*attend_scratch)(const AttendArgs&, int num_threads);
};

const Kernels& reference_kernels();

// The sets that this machine can run, slowest (reference) first.
std::span<const Kernels* const> available_kernel_sets();
// The fastest one; with a name, that one. Throws Error that lists what is there.
const Kernels& choose_kernels(std::string_view name = {});

}  // namespace larder
