#include "larder/cpu/simd/kernel_set.h"

namespace larder::cpu {
namespace {

// Columns and rows are handed out in whole tiles.
constexpr int64_t kColumnUnit = 4, kRowUnit = 6;
// A product of codes takes less time than one of floats.
constexpr int64_t kProductsPerCode = 2;

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

CodedRange range_of(const MatmulCodesArgs& args) {
  return {
      .out = args.out.as<float>(),
      .residual = args.residual,
      .out_stride = args.out.stride[0],
      .bias = args.bias,
      .x = args.x.group,
      .w = reinterpret_cast<const char*>(args.w.data),
      .groups = code_groups(args.w.k),
      .columns = args.w.rows,
      .panel_bytes = panel_bytes(args.w.format, args.w.k),
      .param_bytes = panel_param_bytes(args.w.format, args.w.k),
      .int4 = args.w.format == WeightFormat::kInt4,
  };
}

int64_t columns_of(const MatmulArgs& args) { return args.w.shape[0]; }
int64_t columns_of(const MatmulCodesArgs& args) { return args.w.rows; }

// How the work of several products is cut: rows and columns are handed out in whole units.
struct Cut {
  int64_t rows, row_unit, column_unit;
  int64_t multiplications;  // in all
};

int64_t multiplications_of(std::span<const MatmulArgs> products) {
  int64_t all = 0;
  for (const MatmulArgs& args : products)
    all += args.x.shape[0] * args.w.shape[0] * args.w.shape[1];
  return all;
}

// Calls body(product, row_begin, row_end, unit_begin, unit_end), columns counted in units, until
// all outputs of all products are covered, split over the threads by columns or by rows.
template <class Args, class Body>
void run_products(const Exec& exec, std::span<const Args> products, const Cut& cut,
                  const Body& body) {
  int64_t columns = 0;
  for (const Args& args : products) columns += ceil_div(columns_of(args), cut.column_unit);
  const auto run = [&](int64_t row_begin, int64_t row_end, int64_t column_begin,
                       int64_t column_end) {
    int64_t before = 0;
    for (const Args& args : products) {
      const int64_t own = ceil_div(columns_of(args), cut.column_unit);
      const int64_t begin = at_least(column_begin - before, 0),
                    end = at_most(column_end - before, own);
      before += own;
      if (begin < end) body(args, row_begin, row_end, begin, end);
    }
  };
  const int64_t threads = exec.threads.size(), tiles = ceil_div(cut.rows, cut.row_unit);
  if (threads == 1 || cut.multiplications < kProductsWorthThreads)
    return run(0, cut.rows, 0, columns);
  // The share of the busiest thread, as a fraction of all: share / count, compared without
  // division.
  if (ceil_div(tiles, threads) * columns < ceil_div(columns, threads) * tiles) {
    exec.threads.parallel_for(tiles, [&](int64_t begin, int64_t end, int) {
      run(begin * cut.row_unit, at_most(end * cut.row_unit, cut.rows), 0, columns);
    });
  } else {
    exec.threads.parallel_for(
        columns, [&](int64_t begin, int64_t end, int) { run(0, cut.rows, begin, end); });
  }
}

}  // namespace

bool run_matmul(const Exec& exec, std::span<const MatmulArgs> products, MatmulFunction function) {
  for (const MatmulArgs& args : products)
    if (!function(range_of(args), 0, 0, 0, 0)) return false;
  const Cut cut{products.empty() ? 0 : products[0].x.shape[0], kRowUnit, kColumnUnit,
                multiplications_of(products)};
  run_products(
      exec, products, cut,
      [&](const MatmulArgs& args, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
        function(range_of(args), row_begin, row_end, begin * kColumnUnit,
                 at_most(end * kColumnUnit, args.w.shape[0]));
      });
  return true;
}

#if defined(__x86_64__)
namespace {

int64_t group_bytes(int64_t rows, int64_t k) {
  return ceil_div(k, 32) * 64 * at_most(rows, kAmxRows);
}

TiledMatmul tiled(const MatmulArgs& args) {
  const int64_t rows = args.x.shape[0];
  return {.m = range_of(args),
          .packed = static_cast<char*>(args.room),
          .rows = rows,
          .group_rows = at_most(rows, kAmxRows),
          .group_bytes = group_bytes(rows, args.x.shape[1])};
}

}  // namespace

size_t tiled_room(int64_t rows, int64_t k) {
  return static_cast<size_t>(ceil_div(rows, kAmxRows) * group_bytes(rows, k));
}

void run_matmul_tiled(const Exec& exec, std::span<const MatmulArgs> products) {
  if (products[0].x.shape[0] == 0) return;
  const TiledMatmul first = tiled(products[0]);
  run_rows(exec, ceil_div(first.rows, kAmxRows), first.rows * first.m.k,
           [&](int64_t begin, int64_t end) {
             pack_rows_amx(first, first.m.x, first.m.x_stride, begin, end);
           });
  const Cut cut{first.rows, 2 * kAmxRows, kAmxColumns, multiplications_of(products)};
  run_products(
      exec, products, cut,
      [&](const MatmulArgs& args, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
        matmul_amx_bf16(tiled(args), row_begin / kAmxRows, ceil_div(row_end, kAmxRows),
                        begin * kAmxColumns, at_most(end * kAmxColumns, args.w.shape[0]));
      });
}
#endif

void run_matmul_codes(const Exec& exec, std::span<const MatmulCodesArgs> products,
                      MatmulCodesFunction function) {
  Cut cut{products.empty() ? 0 : products[0].x.rows, kCodedRows, kCodePanel, 0};
  for (const MatmulCodesArgs& args : products)
    cut.multiplications += cut.rows * args.w.rows * args.w.k / kProductsPerCode;
  run_products(exec, products, cut,
               [&](const MatmulCodesArgs& args, int64_t row_begin, int64_t row_end, int64_t begin,
                   int64_t end) { function(range_of(args), row_begin, row_end, begin, end); });
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
