#include "larder/cpu/simd/kernel_set.h"

namespace larder::cpu {
namespace {

// Columns and rows are handed out in whole tiles.
constexpr int64_t kColumnUnit = 4, kRowUnit = 6;

int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

MatmulRange range_of(const MatmulArgs& args) {
  const int64_t k = args.x.shape[1];
  return {
      .out = args.out.as<float>(),
      .residual = args.residual,
      .out_stride = args.out.stride[0],
      .bias = args.bias,
      .x = args.x.data,
      .w = args.w.data,
      .x_stride = args.x.stride[0] * static_cast<int64_t>(dtype_size(args.x.dtype)),
      .w_stride = k * static_cast<int64_t>(dtype_size(args.w.dtype)),
      .k = k,
      .x_type = args.x.dtype,
      .w_type = args.w.dtype,
  };
}

}  // namespace

bool run_matmul(const Exec& exec, std::span<const MatmulArgs> products, MatmulFunction function) {
  const int64_t rows = products.empty() ? 0 : products[0].x.shape[0];
  int64_t columns = 0, multiplications = 0;
  for (const MatmulArgs& args : products) {
    if (!function(range_of(args), 0, 0, 0, 0)) return false;
    columns += ceil_div(args.w.shape[0], kColumnUnit);
    multiplications += rows * args.w.shape[0] * args.w.shape[1];
  }
  const auto run = [&](int64_t row_begin, int64_t row_end, int64_t column_begin,
                       int64_t column_end) {
    int64_t before = 0;
    for (const MatmulArgs& args : products) {
      const int64_t n = args.w.shape[0], own = ceil_div(n, kColumnUnit);
      const int64_t begin = at_least(column_begin - before, 0),
                    end = at_most(column_end - before, own);
      before += own;
      if (begin < end)
        function(range_of(args), row_begin, row_end, begin * kColumnUnit,
                 at_most(end * kColumnUnit, n));
    }
  };
  const int64_t threads = exec.threads.size(), tiles = ceil_div(rows, kRowUnit);
  if (threads == 1 || multiplications < kProductsWorthThreads) {
    run(0, rows, 0, columns);
    return true;
  }
  // The share of the busiest thread, as a fraction of all: share / count, compared without
  // division.
  if (ceil_div(tiles, threads) * columns < ceil_div(columns, threads) * tiles) {
    exec.threads.parallel_for(tiles, [&](int64_t begin, int64_t end, int) {
      run(begin * kRowUnit, at_most(end * kRowUnit, rows), 0, columns);
    });
  } else {
    exec.threads.parallel_for(columns,
                              [&](int64_t begin, int64_t end, int) { run(0, rows, begin, end); });
  }
  return true;
}

void run_rows(const Exec& exec, int64_t rows, int64_t elements,
              FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (elements < kElementsWorthThreads || exec.threads.size() == 1) {
    if (rows > 0) body(0, rows);
    return;
  }
  exec.threads.parallel_for(rows, [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

}  // namespace larder::cpu
