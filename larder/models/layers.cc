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
void embed_ids(const Exec& exec, const WeightMatrix& table, std::span<const int32_t> ids,
               float multiplier, DType compute, const TensorView& x) {
  const int64_t n = x.shape[1];
  const auto round = [&](float value) {
    if (compute == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
    return compute == DType::kF16 ? f16_to_f32(f32_to_f16(value)) : value;
  };
  const float factor = round(multiplier);
  const TensorView& stored = table.stored;
  const int64_t row_bytes = n * static_cast<int64_t>(dtype_size(stored.dtype));
  for (size_t i = 0; i < ids.size(); ++i) {
    float* out = x.as<float>() + static_cast<int64_t>(i) * n;
    if (table.in_codes())
      widen_row(table.coded, ids[i], out);
    else
      exec.kernels.load(out, stored.bytes() + ids[i] * row_bytes, stored.dtype, n);
    if (factor == 1) continue;
    for (int64_t j = 0; j < n; ++j) out[j] = round(out[j] * factor);
  }
}

namespace {

TensorView rows_of(const TensorView& x) {
  return x.shape.rank() == 2 ? x : x.reshape({x.shape[0], x.shape[1] * x.shape[2]});
}

}  // namespace

MatmulInput matmul_input(const Exec& exec, const TensorView& x, DType weight, DType compute,
                         const TensorView& room) {
  if (compute == DType::kF32) return {x, nullptr};
  const DType stored = exec.kernels.matmul_input(compute, weight);
  const TensorView out = TensorView::contiguous(room.data, stored, x.shape);
  exec.kernels.round_rows(exec, out, x, compute);
  return {out, room.bytes() + Arena::padded(x.count(), stored)};
}

int64_t matmul_room_bytes(const Exec& exec, int64_t rows, int64_t widest, DType compute,
                          WeightFormat format) {
  const DType stored = exec.kernels.matmul_input(compute, compute);
  const size_t bytes = Arena::padded(rows * widest, stored) +
                       exec.kernels.matmul_room(rows, widest, stored, compute);
  const int64_t floats = compute == DType::kF32 ? 0 : static_cast<int64_t>(bytes);
  return std::max(floats, format == WeightFormat::kStored ? 0 : coded_rows_bytes(rows, widest));
}

namespace {

constexpr size_t kMostProducts = 3;
using Products = std::span<const Product>;

void linear_of_codes(const Exec& exec, const TensorView& x, Products products,
                     const TensorView& room) {
  const CodedRows coded{room.as<CodedRowGroup>(), x.shape[0], x.shape[1]};
  exec.kernels.code_rows(exec, coded, x);
  std::array<MatmulCodesArgs, kMostProducts> args;
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    args[i] = {rows_of(product.out), coded, product.weights.w.coded, product.weights.bias,
               product.residual};
  }
  exec.kernels.matmul_codes(exec, std::span(args).first(products.size()));
}

void linear_of_floats(const Exec& exec, const TensorView& x, Products products, DType compute,
                      const TensorView& room) {
  std::array<MatmulArgs, kMostProducts> args;
  const MatmulInput input =
      matmul_input(exec, x, products[0].weights.w.stored.dtype, compute, room);
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    args[i] = {rows_of(product.out), input.x,          product.weights.w.stored,
               product.weights.bias, product.residual, input.room};
  }
  exec.kernels.matmul(exec, std::span(args).first(products.size()));
}

}  // namespace

void linear(const Exec& exec, const TensorView& x, std::initializer_list<Product> products,
            DType compute, const TensorView& room) {
  LARDER_ASSERT(products.size() <= kMostProducts);
  // Weights of another type may want x in another form, for which there is room only after the
  // others have read it.
  const auto same_input = [&](const WeightMatrix& a, const WeightMatrix& b) {
    const auto form = exec.kernels.matmul_input;
    return a.in_codes() == b.in_codes() &&
           (a.in_codes() || form(compute, a.stored.dtype) == form(compute, b.stored.dtype));
  };
  for (Products left(products.begin(), products.size()); !left.empty();) {
    const WeightMatrix& first = left[0].weights.w;
    size_t alike = 1;
    while (alike < left.size() && same_input(first, left[alike].weights.w)) ++alike;
    if (first.in_codes())
      linear_of_codes(exec, rows_of(x), left.first(alike), room);
    else
      linear_of_floats(exec, rows_of(x), left.first(alike), compute, room);
    left = left.subspan(alike);
  }
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
