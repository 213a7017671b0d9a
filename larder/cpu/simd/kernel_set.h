// Makes a kernel table out of an instruction set's RangeOps: reads the views, cuts the work into
// ranges for the threads, and leaves rare types to the reference set. Compiled for every machine.
#pragma once

#include "larder/cpu/attend_driver.h"
#include "larder/cpu/reference/reference.h"
#include "larder/cpu/simd/range_ops.h"

namespace larder::cpu {

// Below this many elements (or products, for matmul) a kernel takes less time than waking a thread.
constexpr int64_t kElementsWorthThreads = int64_t{16} * 1024;
constexpr int64_t kProductsWorthThreads = int64_t{64} * 1024;

using MatmulFunction = bool (*)(const MatmulRange&, int64_t, int64_t, int64_t, int64_t);

// Runs `function` on all outputs of all products, split over the threads by columns or by rows.
// False, and nothing done, if it has no code for the types of one of them.
bool run_matmul(const Exec& exec, std::span<const MatmulArgs> products, MatmulFunction function);

// bf16 products with bf16 weights by tiles. All of one x, which is laid out in `room`, of
// tiled_room bytes.
void run_matmul_tiled(const Exec& exec, std::span<const MatmulArgs> products);
size_t tiled_room(int64_t rows, int64_t k);

using MatmulCodesFunction = void (*)(const CodedRange&, int64_t, int64_t, int64_t, int64_t);
void run_matmul_codes(const Exec& exec, std::span<const MatmulCodesArgs> products,
                      MatmulCodesFunction function);

// Runs body(begin, end) over [0, rows), split if `elements` in all are worth it.
void run_rows(const Exec& exec, int64_t rows, int64_t elements,
              FunctionRef<void(int64_t begin, int64_t end)> body);

template <const RangeOps& kOps, const AttendOps& kAttendOps>
struct KernelSet {
  static DType matmul_input(DType, DType) { return DType::kF32; }

  static size_t matmul_room(int64_t, int64_t, DType, DType) { return 0; }

  static void matmul(const Exec& exec, std::span<const MatmulArgs> products) {
    if (run_matmul(exec, products, kOps.matmul)) return;
    for (size_t i = 0; i < products.size(); ++i) {
      const auto one = products.subspan(i, 1);
      if (!run_matmul(exec, one, kOps.matmul)) reference::matmul(exec, one);
    }
  }

  static void code_rows(const Exec& exec, const CodedRows& out, const TensorView& x) {
    const int64_t groups = code_groups(out.k);
    run_rows(exec, out.rows, out.rows * out.k, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        kOps.code_row(out.group + r / kCodedRows * groups, r % kCodedRows,
                      x.as<float>() + r * x.stride[0], out.k);
    });
  }

  static void matmul_codes(const Exec& exec, std::span<const MatmulCodesArgs> products) {
    run_matmul_codes(exec, products, kOps.matmul_codes);
  }

  static void round_rows(const Exec& exec, const TensorView& out, const TensorView& x,
                         DType compute) {
    const int64_t n = x.shape[1], size = static_cast<int64_t>(dtype_size(out.dtype));
    if (x.count() == 0) return;
    if (!kOps.round(out.data, out.dtype, x.as<float>(), 0, compute))
      return reference::round_rows(exec, out, x, compute);
    run_rows(exec, x.shape[0], x.count(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        kOps.round(out.bytes() + r * out.stride[0] * size, out.dtype,
                   x.as<float>() + r * x.stride[0], n, compute);
    });
  }

  static void rms_norm(const Exec& exec, const TensorView& out, const TensorView& x,
                       const float* weight, float weight_offset, float eps) {
    run_rows(exec, x.shape[0], x.count(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        kOps.rms_norm(out.as<float>() + r * out.stride[0], x.as<float>() + r * x.stride[0], weight,
                      weight_offset, eps, x.shape[1]);
    });
  }

  static void rope(const Exec& exec, const TensorView& x, const float* cos_sin, int64_t half) {
    run_rows(exec, x.shape[0], x.count(), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float* cos = cos_sin + t * 2 * half;
        for (int64_t h = 0; h < x.shape[1]; ++h) {
          float* low = x.as<float>() + t * x.stride[0] + h * x.stride[1];
          kOps.rope(low, low + half, cos, cos + half, half);
        }
      }
    });
  }

  static void gate_mul(const Exec& exec, const TensorView& gate, const TensorView& up,
                       Activation act) {
    const auto function = act == Activation::kSilu       ? kOps.silu_mul
                          : act == Activation::kGeluTanh ? kOps.gelu_tanh_mul
                                                         : kOps.gelu_mul;
    run_rows(exec, gate.shape[0], gate.count(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        function(gate.as<float>() + r * gate.stride[0], up.as<float>() + r * up.stride[0],
                 gate.shape[1]);
    });
  }

  static void softcap(const Exec& exec, float* x, int64_t count, float cap) {
    run_rows(exec, count, count,
             [&](int64_t begin, int64_t end) { kOps.softcap(x + begin, end - begin, cap); });
  }

  static void store(void* out, DType dtype, const float* x, int64_t count) {
    if (!kOps.store(out, dtype, x, count)) reference::store(out, dtype, x, count);
  }

  static void load(float* out, const void* x, DType dtype, int64_t count) {
    if (!kOps.load(out, x, dtype, count)) reference::load(out, x, dtype, count);
  }

  static void attend(const Exec& exec, const AttendArgs& args) {
    attend_with(kAttendOps, exec, args);
  }

  static constexpr Kernels table(const char* name) {
    return {
        .name = name,
        .matmul_input = matmul_input,
        .matmul_room = matmul_room,
        .matmul = matmul,
        .code_rows = code_rows,
        .matmul_codes = matmul_codes,
        .round_rows = round_rows,
        .rms_norm = rms_norm,
        .rope = rope,
        .gate_mul = gate_mul,
        .softcap = softcap,
        .store = store,
        .load = load,
        .attend = attend,
        .attend_scratch = attend_with_scratch,
    };
  }
};

}  // namespace larder::cpu
