#include "larder/cpu/simd/kernel_set.h"

namespace larder::cpu {
namespace {

// Columns and rows are handed out in whole tiles.
constexpr int64_t kColumnUnit = 4, kRowUnit = 6;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

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

bool run_matmul(const Exec& exec, const MatmulArgs& args, MatmulFunction function) {
  const MatmulRange m = range_of(args);
  const int64_t rows = args.x.shape[0], n = args.w.shape[0], threads = exec.threads.size();
  if (!function(m, 0, 0, 0, 0)) return false;
  if (threads == 1 || rows * n * m.k < kProductsWorthThreads) return function(m, 0, rows, 0, n);

  const int64_t columns = ceil_div(n, kColumnUnit), tiles = ceil_div(rows, kRowUnit);
  // The share of the busiest thread, as a fraction of all: share / count, compared without
  // division.
  const bool by_rows = ceil_div(tiles, threads) * columns < ceil_div(columns, threads) * tiles;
  if (by_rows) {
    exec.threads.parallel_for(tiles, [&](int64_t begin, int64_t end, int) {
      function(m, begin * kRowUnit, at_most(end * kRowUnit, rows), 0, n);
    });
  } else {
    exec.threads.parallel_for(columns, [&](int64_t begin, int64_t end, int) {
      function(m, 0, rows, begin * kColumnUnit, at_most(end * kColumnUnit, n));
    });
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
