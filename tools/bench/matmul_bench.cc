// Matmul as a small model (SmolLM2-135M: hidden 576, intermediate 1536, 30 layers, vocabulary
// 49152) has it. Decode (one row, or one each of a few requests) reads all its matrices once, which
// is bound by memory; prefill multiplies 512 rows, which is bound by arithmetic.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "larder/base/str.h"
#include "tools/bench/machine.h"

namespace larder::bench {
namespace {

using Dims = std::pair<int64_t, int64_t>;  // n, k

std::vector<Dims> model_matrices() {
  std::vector<Dims> all;
  for (int layer = 0; layer < 30; ++layer) {
    const Dims of_layer[] = {{576, 576},  {192, 576},  {192, 576}, {576, 576},
                             {1536, 576}, {1536, 576}, {576, 1536}};
    all.insert(all.end(), std::begin(of_layer), std::end(of_layer));
  }
  all.emplace_back(49152, 576);
  return all;
}

// The first and last output against a sum in double precision.
bool is_right(const MatmulArgs& args) {
  const int64_t n = args.w.shape[0], k = args.w.shape[1];
  std::vector<float> x(static_cast<size_t>(k)), w(x.size());
  reference_kernels().load(x.data(), args.x.data, args.x.dtype, k);
  for (const int64_t j : {int64_t{0}, n - 1}) {
    const auto row = j * k * static_cast<int64_t>(dtype_size(args.w.dtype));
    reference_kernels().load(w.data(), args.w.bytes() + row, args.w.dtype, k);
    double want = 0;
    for (size_t i = 0; i < x.size(); ++i) want += double{x[i]} * double{w[i]};
    if (std::fabs(args.out.as<float>()[j] - want) > 1e-3) return false;
  }
  return true;
}

void decode(benchmark::State& state, const Kernels& set, int64_t rows, DType dtype, int threads) {
  Machine machine(set, threads);
  const std::vector<Dims> matrices = model_matrices();
  int64_t count = 0;
  for (const auto& [n, k] : matrices) count += n * k;
  const Tensor weights = filled(machine.allocator, Shape{count}, dtype);
  const Tensor x = filled(machine.allocator, Shape{rows, 1536}, set.matmul_input(dtype, dtype));
  const Tensor out(machine.allocator, Shape{rows, 49152}, DType::kF32, "bench");
  const auto bytes = static_cast<size_t>(weights.view().byte_size());
  std::vector<char> room(set.matmul_room(rows, 1536, x.view().dtype, dtype));

  const auto pass = [&] {
    std::byte* w = weights.view().bytes();
    MatmulArgs args;
    args.room = room.data();
    for (const auto& [n, k] : matrices) {
      args.out = TensorView::contiguous(out.view().data, DType::kF32, Shape{rows, n});
      args.x = TensorView::contiguous(x.view().data, x.view().dtype, Shape{rows, k});
      args.w = TensorView::contiguous(w, dtype, Shape{n, k});
      set.matmul(machine.exec(), {&args, 1});
      w += args.w.byte_size();
    }
    return args;
  };
  if (!is_right(pass())) return state.SkipWithError("wrong result");
  std::vector<double> read, run;
  for (auto _ : state) {
    read.push_back(seconds([&] { read_bytes(machine.threads, weights.view().data, bytes); }));
    run.push_back(seconds(pass));
    state.SetIterationTime(run.back());
  }
  state.counters["GB/s"] = static_cast<double>(bytes) / median(run) * 1e-9;
  state.counters["bare_GB/s"] = static_cast<double>(bytes) / median(read) * 1e-9;
  state.counters["of_bare"] = median(read) / median(run);
}

void prefill(benchmark::State& state, const Kernels& set, DType dtype, Dims dims, int threads) {
  constexpr int64_t kRows = 512, kRounds = 500'000;
  Machine machine(set, threads);
  const auto [n, k] = dims;
  const Tensor w = filled(machine.allocator, Shape{n, k}, dtype);
  const Tensor x = filled(machine.allocator, Shape{kRows, k}, set.matmul_input(dtype, dtype));
  const Tensor out(machine.allocator, Shape{kRows, n}, DType::kF32, "bench");
  MatmulArgs args;
  args.out = out;
  args.x = x;
  args.w = w;
  std::vector<char> room(set.matmul_room(kRows, k, x.view().dtype, dtype));
  args.room = room.data();
  set.matmul(machine.exec(), {&args, 1});
  if (!is_right(args)) return state.SkipWithError("wrong result");

  std::vector<double> peak, run;
  bool has_dot = true;
  for (auto _ : state) {
    const double s = seconds([&] { has_dot = run_bf16_dot(machine.threads, kRounds); });
    peak.push_back(s / (kPeakFlopsPerRound * static_cast<double>(kRounds) * threads));
    run.push_back(seconds([&] { set.matmul(machine.exec(), {&args, 1}); }));
    state.SetIterationTime(run.back());
  }
  const double flops = 2.0 * static_cast<double>(kRows * n * k);
  state.counters["GFLOP/s"] = flops / median(run) * 1e-9;
  if (!has_dot) return;
  state.counters["peak_GFLOP/s"] = 1e-9 / median(peak);
  state.counters["of_peak"] = median(peak) * flops / median(run);
}

int register_all() {
  for (const Kernels* set : available_kernel_sets()) {
    if (set == &reference_kernels()) continue;
    for (const int threads : thread_counts()) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const std::string tail = str("/", set->name, "/", dtype_name(dtype), "/threads:", threads);
        for (const int64_t rows : {1, 4, 8, 16}) {
          register_timed(
              str("matmul_decode/rows:", rows, tail), benchmark::kMillisecond,
              [=](benchmark::State& state) { decode(state, *set, rows, dtype, threads); });
        }
        for (const Dims& dims :
             {Dims{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {2048, 8192}}) {
          const std::string name = str("matmul_prefill/512x", dims.first, "x", dims.second, tail);
          register_timed(name, benchmark::kMicrosecond, [=](benchmark::State& state) {
            prefill(state, *set, dtype, dims, threads);
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
