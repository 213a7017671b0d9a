// The kernels that work value by value, over rows that lie in memory (64 MiB) and over one row, as
// decode has it. Bound by memory where the rows lie there: compared with the bare reading of as
// many bytes as they read and write.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "larder/base/str.h"
#include "tools/bench/machine.h"

namespace larder::bench {
namespace {

constexpr int64_t kHeadDim = 64;

// What a kernel works on: x in place, y beside it, both [rows, n] f32.
struct Rows {
  Rows(Machine& machine, int64_t rows, int64_t n)
      : x(filled(machine.allocator, Shape{rows, n}, DType::kF32)),
        y(filled(machine.allocator, Shape{rows, n}, DType::kF32)),
        narrow(filled(machine.allocator, Shape{rows, n}, DType::kBF16)),
        cos_sin(static_cast<size_t>(rows * kHeadDim), 0.5f) {}
  Tensor x, y, narrow;
  std::vector<float> cos_sin;
};

struct RowKernel {
  const char* name;
  int bytes, flops;  // read and written, and done, a value
  void (*run)(const Kernels& set, const Exec& exec, Rows& rows);
};

const RowKernel kRowKernels[] = {
    {"rope", 8, 3,
     [](const Kernels& set, const Exec& exec, Rows& rows) {
       const Shape& shape = rows.x.view().shape;
       set.rope(exec, rows.x.view().reshape({shape[0], shape[1] / kHeadDim, kHeadDim}),
                rows.cos_sin.data(), kHeadDim / 2);
     }},
    {"silu_mul", 12, 4,
     [](const Kernels& set, const Exec& exec, Rows& rows) {
       set.gate_mul(exec, rows.x, rows.y, Activation::kSilu);
     }},
    {"gelu_tanh_mul", 12, 8,
     [](const Kernels& set, const Exec& exec, Rows& rows) {
       set.gate_mul(exec, rows.x, rows.y, Activation::kGeluTanh);
     }},
    {"softcap", 8, 3,
     [](const Kernels& set, const Exec& exec, Rows& rows) {
       set.softcap(exec, rows.x.as<float>(), rows.x.view().count(), 30);
     }},
    {"round_rows_bf16", 6, 1,
     [](const Kernels& set, const Exec& exec, Rows& rows) {
       set.round_rows(exec, rows.narrow, rows.x, DType::kBF16);
     }},
};

// One row against the reference set: activations differ by their approximations of exp and tanh.
bool is_right(const RowKernel& kernel, Machine& machine, int64_t n) {
  Rows got(machine, 1, n), want(machine, 1, n);
  kernel.run(machine.kernels, machine.exec(), got);
  kernel.run(reference_kernels(), machine.exec(), want);
  for (int64_t i = 0; i < n; ++i)
    if (!(std::fabs(got.x.as<float>()[i] - want.x.as<float>()[i]) < 1e-5f)) return false;
  const auto bytes = static_cast<size_t>(want.narrow.view().byte_size());
  return std::memcmp(got.narrow.view().data, want.narrow.view().data, bytes) == 0;
}

void time_rows(benchmark::State& state, const RowKernel& kernel, const Kernels& set, int64_t count,
               int64_t n, int threads) {
  Machine machine(set, threads);
  if (!is_right(kernel, machine, n)) return state.SkipWithError("wrong result");
  Rows rows(machine, count, n);
  // Gated rows shrink at each pass: few enough that none becomes subnormal, and anew every time.
  const int repeats = count == 1 ? 20 : 1;
  const auto bytes = static_cast<size_t>(rows.x.view().byte_size());
  std::vector<double> read, run;
  for (auto _ : state) {
    if (count > 1)
      read.push_back(seconds([&] { read_bytes(machine.threads, rows.x.view().data, bytes); }));
    std::memcpy(rows.x.view().data, rows.y.view().data, bytes);
    run.push_back(seconds([&] {
                    for (int i = 0; i < repeats; ++i) kernel.run(set, machine.exec(), rows);
                  }) /
                  repeats);
    state.SetIterationTime(run.back());
  }
  const double values = static_cast<double>(count * n), time = median(run);
  state.counters["GB/s"] = kernel.bytes * values / time * 1e-9;
  state.counters["GFLOP/s"] = kernel.flops * values / time * 1e-9;
  if (count == 1) return;
  const double bare = static_cast<double>(bytes) / median(read);
  state.counters["bare_GB/s"] = bare * 1e-9;
  state.counters["of_bare"] = kernel.bytes * values / time / bare;
}

int register_all() {
  for (const RowKernel& kernel : kRowKernels) {
    for (const Kernels* set : available_kernel_sets()) {
      for (const int threads : thread_counts()) {
        for (const int64_t rows : {int64_t{1}, (int64_t{1} << 24) / 1536}) {
          register_timed(str(kernel.name, "/", rows, "x1536/", set->name, "/threads:", threads),
                         benchmark::kMicrosecond, [=, &kernel](benchmark::State& state) {
                           time_rows(state, kernel, *set, rows, 1536, threads);
                         });
        }
      }
    }
  }
  return 0;
}

const int registered = register_all();

}  // namespace
}  // namespace larder::bench
