// Pieces of a forward pass that architectures share. Activations are f32; `compute` is what the
// inputs of a matmul are rounded to.
#pragma once

#include <initializer_list>
#include <span>

#include "larder/cache/cache.h"
#include "larder/models/weight_loader.h"
#include "larder/tensor/kernels.h"

namespace larder {

// Throws for an id outside 0..vocab_size - 1.
void check_ids(std::span<const int32_t> ids, int64_t vocab_size);

// Most tokens that a row has after the step, rounded up so that a growing cache does not make the
// scratch grow at every step.
int64_t kv_bound(const Cache& cache, const Step& step);

// x[i] = row ids[i] of `table`, as floats or what its codes stand for, times `multiplier`, each
// product rounded to `compute`. x: [ids, hidden] f32.
void embed_ids(const Exec& exec, const WeightMatrix& table, std::span<const int32_t> ids,
               float multiplier, DType compute, const TensorView& x);

// One product of an input: where it goes, the weights, and what is added last.
struct Product {
  const TensorView& out;
  const LinearWeights& weights;
  const float* residual = nullptr;
};

int64_t matmul_room_bytes(const Exec& exec, int64_t rows, int64_t widest, DType compute,
                          WeightFormat format);

// At most three products of one input x, in one call of the kernel. `room` is what
// take_matmul_room gave.
void linear(const Exec& exec, const TensorView& x, std::initializer_list<Product> products,
            DType compute, const TensorView& room);

// Room for inputs as a kernel wants them, rounded to `compute` or beside weights of `format` in
// codes; empty where they stay as they are. `take` as in Arena::take.
template <class Take>
TensorView take_matmul_room(const Exec& exec, int64_t rows, int64_t widest, DType compute,
                            WeightFormat format, const Take& take) {
  const int64_t bytes = matmul_room_bytes(exec, rows, widest, compute, format);
  return bytes > 0 ? take(Shape{bytes}, DType::kU8) : TensorView{};
}

// What a product reads, and the room its kernel may want beside it.
struct MatmulInput {
  TensorView x;
  void* room = nullptr;
};

// x [rows, n] rounded to `compute` into `room`, as the kernel wants it beside weights of dtype
// `weight`; x itself where there is nothing to round.
MatmulInput matmul_input(const Exec& exec, const TensorView& x, DType weight, DType compute,
                         const TensorView& room);

void add_to(const Exec& exec, const TensorView& x, const TensorView& y);  // x += y, contiguous

// out[i] = x[rows[i]]; both [.., n] f32 and contiguous.
void gather_rows(const TensorView& out, const TensorView& x, std::span<const int32_t> rows);

}  // namespace larder
