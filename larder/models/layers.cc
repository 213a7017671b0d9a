#include "larder/models/layers.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "larder/base/error.h"

namespace larder {

void check_ids(std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size)
      fail("token id ", id, " is outside the vocabulary 0..", vocab_size - 1);
  }
}

int64_t kv_bound(const Cache& cache, const Step& step) {
  if (cache.max_len() >= 0) return cache.max_len();
  int64_t longest = 0;
  for (int32_t b = 0; b < step.batch; ++b)
    longest = std::max(longest, cache.seq_len(step.slot[b]) + step.q_len(b));
  constexpr int64_t kStep = 4096;
  return (longest + kStep - 1) / kStep * kStep;
}

// Gemma multiplies in the activations' dtype, the multiplier rounded to it first.
void embed_ids(const Exec& exec, const TensorView& table, std::span<const int32_t> ids,
               float multiplier, DType compute, const TensorView& x) {
  const int64_t n = table.shape[1];
  const auto round = [&](float value) {
    if (compute == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
    return compute == DType::kF16 ? f16_to_f32(f32_to_f16(value)) : value;
  };
  const float factor = round(multiplier);
  const int64_t row_bytes = n * static_cast<int64_t>(dtype_size(table.dtype));
  for (size_t i = 0; i < ids.size(); ++i) {
    float* out = x.as<float>() + static_cast<int64_t>(i) * n;
    exec.kernels.load(out, table.bytes() + ids[i] * row_bytes, table.dtype, n);
    if (factor == 1) continue;
    for (int64_t j = 0; j < n; ++j) out[j] = round(out[j] * factor);
  }
}

namespace {

TensorView rows_of(const TensorView& x) {
  return x.shape.rank() == 2 ? x : x.reshape({x.shape[0], x.shape[1] * x.shape[2]});
}

}  // namespace

TensorView matmul_input(const Exec& exec, const TensorView& x, DType weight, DType compute,
                        const TensorView& room) {
  if (compute == DType::kF32) return x;
  const DType stored = exec.kernels.matmul_input(compute, weight);
  const TensorView out = TensorView::contiguous(room.data, stored, x.shape);
  exec.kernels.round_rows(exec, out, x, compute);
  return out;
}

void linear(const Exec& exec, const TensorView& x, std::initializer_list<Product> products,
            DType compute, const TensorView& rounded) {
  constexpr size_t kMost = 3;
  LARDER_ASSERT(products.size() <= kMost);
  std::array<MatmulArgs, kMost> args;
  size_t n = 0;
  const auto run = [&] {
    exec.kernels.matmul(exec, std::span(args).first(n));
    n = 0;
  };
  for (const Product& product : products) {
    const DType weight = product.weights.w.dtype;
    // Weights of another type may want x in another form, for which there is room only after the
    // others have read it.
    if (n > 0 && args[n - 1].x.dtype != exec.kernels.matmul_input(compute, weight)) run();
    const TensorView ready =
        n > 0 ? args[n - 1].x : matmul_input(exec, rows_of(x), weight, compute, rounded);
    args[n++] = {rows_of(product.out), ready, product.weights.w, product.weights.bias,
                 product.residual};
  }
  run();
}

void add_to(const Exec& exec, const TensorView& x, const TensorView& y) {
  exec.threads.parallel_for(x.count(), [&](int64_t begin, int64_t end, int /*thread*/) {
    float* to = x.as<float>();
    const float* from = y.as<float>();
    for (int64_t i = begin; i < end; ++i) to[i] += from[i];
  });
}

void gather_rows(const TensorView& out, const TensorView& x, std::span<const int32_t> rows) {
  const int64_t n = x.shape[1];
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(out.as<float>() + static_cast<int64_t>(i) * n, x.as<float>() + rows[i] * n,
                static_cast<size_t>(n) * sizeof(float));
  }
}

}  // namespace larder
