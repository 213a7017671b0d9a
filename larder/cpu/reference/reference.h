// The reference set: plain loops in f32, one small file a kernel. It is the documentation of each
// kernel and what every other set is compared with; it may be slow, it may not be clever. What each
// function does is said at the table, larder/tensor/kernels.h. All run on the calling thread.
#pragma once

#include "larder/tensor/kernels.h"

namespace larder::cpu::reference {

DType matmul_input(DType compute, DType weight);
size_t matmul_room(int64_t rows, int64_t k, DType x, DType weight);
void matmul(const Exec& exec, std::span<const MatmulArgs> products);
void code_rows(const Exec& exec, const CodedRows& out, const TensorView& x);
void matmul_codes(const Exec& exec, std::span<const MatmulCodesArgs> products);
void round_rows(const Exec& exec, const TensorView& out, const TensorView& x, DType compute);
void rms_norm(const Exec& exec, const TensorView& out, const TensorView& x, const float* weight,
              float weight_offset, float eps);
void rope(const Exec& exec, const TensorView& x, const float* cos_sin, int64_t half);
void gate_mul(const Exec& exec, const TensorView& gate, const TensorView& up, Activation act);
void softcap(const Exec& exec, float* x, int64_t count, float cap);
void store(void* out, DType dtype, const float* x, int64_t count);
void load(float* out, const void* x, DType dtype, int64_t count);
void attend(const Exec& exec, const AttendArgs& args);
size_t attend_scratch(const AttendArgs& args, int num_threads);

}  // namespace larder::cpu::reference
