// rms_norm over rows that lie in memory (64 MiB) and over one row, as decode has it.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "larder/base/str.h"
#include "tools/bench/machine.h"

namespace larder::bench {
namespace {

bool is_right(const float* out, const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
  const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-5);
  return std::fabs(out[n - 1] - x[n - 1] * scale) < 1e-4;
}

void rms_norm(benchmark::State& state, const Kernels& set, int64_t rows, int64_t n, int threads) {
  Machine machine(set, threads);
  const Tensor x = filled(machine.allocator, Shape{rows, n}, DType::kF32);
  const Tensor out(machine.allocator, Shape{rows, n}, DType::kF32, "bench");
  const std::vector<float> weight(static_cast<size_t>(n), 1.0f);
  const auto run_once = [&] { set.rms_norm(machine.exec(), out, x, weight.data(), 0.0f, 1e-5f); };
  run_once();
  if (!is_right(out.as<float>(), x.as<float>(), n)) return state.SkipWithError("wrong result");
  const auto bytes = static_cast<size_t>(x.view().byte_size());
  const int repeats = rows == 1 ? 1000 : 1;
  std::vector<double> read, run;
  for (auto _ : state) {
    if (rows > 1)
      read.push_back(seconds([&] { read_bytes(machine.threads, x.view().data, bytes); }));
    run.push_back(seconds([&] {
                    for (int i = 0; i < repeats; ++i) run_once();
                  }) /
                  repeats);
    state.SetIterationTime(run.back());
  }
  // Each value is read once from memory and written once; a square, a sum and two products.
  const double time = median(run), values = static_cast<double>(rows * n);
  state.counters["GB/s"] = 8 * values / time * 1e-9;
  state.counters["GFLOP/s"] = 4 * values / time * 1e-9;
  if (rows > 1) state.counters["bare_read_GB/s"] = static_cast<double>(bytes) / median(read) * 1e-9;
}

int register_all() {
  for (const Kernels* set : available_kernel_sets()) {
    for (const int threads : thread_counts()) {
      for (const int64_t n : {576, 4096}) {
        for (const int64_t rows : {int64_t{1}, (int64_t{1} << 24) / n}) {
          register_timed(str("rms_norm/", rows, "x", n, "/", set->name, "/threads:", threads),
                         benchmark::kMicrosecond,
                         [=](benchmark::State& state) { rms_norm(state, *set, rows, n, threads); });
        }
      }
    }
  }
  return 0;
}

const int registered = register_all();

}  // namespace
}  // namespace larder::bench
