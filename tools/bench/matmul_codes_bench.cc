// Products of codes as a small model (SmolLM2-135M) has them with --weights int8 or int4: decode
// reads all its matrices once, which is bound by memory; prefill multiplies 512 rows.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "larder/base/str.h"
#include "larder/tensor/encode_matrix.h"
#include "tools/bench/machine.h"

namespace larder::bench {
namespace {

using Dims = std::pair<int64_t, int64_t>;  // n, k

// One encoded matrix of each size, to be copied: making 135 million codes takes seconds.
class Prototypes {
 public:
  explicit Prototypes(ThreadPool& threads) : threads_(threads) {}
  CodedMatrix get(Dims dims, WeightFormat format) {
    Buffer& codes = made_[{dims, format}];
    const auto [n, k] = dims;
    if (codes.size() == 0) {
      codes = Buffer(host_, static_cast<size_t>(coded_bytes(format, n, k)), "bench");
      encode_matrix(filled(host_, Shape{n, k}, DType::kF32), format, codes.data(), threads_);
    }
    return {codes.data(), format, n, k};
  }

 private:
  ThreadPool& threads_;
  HostAllocator host_;
  std::map<std::pair<Dims, WeightFormat>, Buffer> made_;
};

// All matrices of the model in one piece of memory, as they follow each other in a forward.
struct Matrices {
  Matrices(ThreadPool& threads, WeightFormat format) {
    std::vector<std::pair<Dims, WeightFormat>> wanted;
    for (int layer = 0; layer < 30; ++layer)
      for (const Dims& dims : {Dims{576, 576},
                               {192, 576},
                               {192, 576},
                               {576, 576},
                               {1536, 576},
                               {1536, 576},
                               {576, 1536}})
        wanted.push_back({dims, format});
    wanted.push_back({{49152, 576}, WeightFormat::kInt8});
    for (const auto& [dims, own] : wanted)
      bytes += static_cast<size_t>(coded_bytes(own, dims.first, dims.second));
    memory = Buffer(host, bytes, "bench");
    Prototypes prototypes(threads);
    std::byte* at = memory.data();
    for (const auto& [dims, own] : wanted) {
      all.push_back(prototypes.get(dims, own));
      const auto size = static_cast<size_t>(coded_bytes(own, dims.first, dims.second));
      std::memcpy(at, all.back().data, size);
      all.back().data = at;
      at += size;
    }
  }
  HostAllocator host;
  size_t bytes = 0;
  Buffer memory;
  std::vector<CodedMatrix> all;
};

// Rows of x in codes, for any k up to 1536.
struct Rows {
  Rows(Machine& machine, int64_t rows, int64_t most_k)
      : x(filled(machine.allocator, Shape{rows, most_k}, DType::kF32)),
        room(machine.allocator, static_cast<size_t>(coded_rows_bytes(rows, most_k)), "bench") {}
  CodedRows code(Machine& machine, int64_t k) const {
    TensorView view = x;
    view.shape = Shape{x.view().shape[0], k};
    const CodedRows rows{reinterpret_cast<CodedRowGroup*>(room.data()), view.shape[0], k};
    machine.kernels.code_rows(machine.exec(), rows, view);
    return rows;
  }
  Tensor x;
  Buffer room;
};

// The first row's first and last output against a sum in double precision.
bool is_right(const MatmulCodesArgs& args, const Rows& rows) {
  std::vector<float> w(static_cast<size_t>(args.w.k));
  for (const int64_t j : {int64_t{0}, args.w.rows - 1}) {
    widen_row(args.w, j, w.data());
    double want = 0, size = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      want += double{rows.x.as<float>()[i]} * double{w[i]};
      size += std::fabs(double{rows.x.as<float>()[i]} * double{w[i]});
    }
    if (std::fabs(args.out.as<float>()[j] - want) > 0.02 * size) return false;
  }
  return true;
}

// A forward's way: x is coded once for q, k and v, and for gate and up.
void decode(benchmark::State& state, const Kernels& set, int64_t rows, WeightFormat format,
            int threads) {
  Machine machine(set, threads);
  const Matrices matrices(machine.threads, format);
  const Rows x(machine, rows, 1536);
  const Tensor out(machine.allocator, Shape{rows, 49152}, DType::kF32, "bench");
  const auto pass = [&] {
    MatmulCodesArgs args;
    for (const CodedMatrix& w : matrices.all) {
      args.out = TensorView::contiguous(out.view().data, DType::kF32, Shape{rows, w.rows});
      args.w = w;
      args.x = x.code(machine, w.k);
      set.matmul_codes(machine.exec(), {&args, 1});
    }
    return args;
  };
  if (!is_right(pass(), x)) return state.SkipWithError("wrong result");
  std::vector<double> read, run;
  for (auto _ : state) {
    read.push_back(
        seconds([&] { read_bytes(machine.threads, matrices.memory.data(), matrices.bytes); }));
    run.push_back(seconds(pass));
    state.SetIterationTime(run.back());
  }
  state.counters["GB/s"] = static_cast<double>(matrices.bytes) / median(run) * 1e-9;
  state.counters["bare_GB/s"] = static_cast<double>(matrices.bytes) / median(read) * 1e-9;
  state.counters["of_bare"] = median(read) / median(run);
}

void prefill(benchmark::State& state, const Kernels& set, WeightFormat format, Dims dims,
             int threads) {
  constexpr int64_t kRows = 512;
  Machine machine(set, threads);
  Prototypes prototypes(machine.threads);
  const Rows x(machine, kRows, dims.second);
  const Tensor out(machine.allocator, Shape{kRows, dims.first}, DType::kF32, "bench");
  MatmulCodesArgs args;
  args.out = out;
  args.w = prototypes.get(dims, format);
  const auto run_once = [&] {
    args.x = x.code(machine, dims.second);
    set.matmul_codes(machine.exec(), {&args, 1});
  };
  run_once();
  if (!is_right(args, x)) return state.SkipWithError("wrong result");
  std::vector<double> run, code;
  for (auto _ : state) {
    code.push_back(seconds([&] { x.code(machine, dims.second); }));
    run.push_back(seconds(run_once));
    state.SetIterationTime(run.back());
  }
  const double operations = 2.0 * static_cast<double>(kRows * dims.first * dims.second);
  state.counters["GOP/s"] = operations / median(run) * 1e-9;
  state.counters["coding"] = median(code) / median(run);
}

int register_all() {
  for (const Kernels* set : available_kernel_sets()) {
    // The sets above avx512_vnni multiply codes as that does.
    const std::string_view name = set->name;
    if (name == "reference" || name == "avx512_bf16" || name == "amx_bf16") continue;
    for (const int threads : thread_counts()) {
      for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
        const std::string tail =
            str("/", set->name, "/", weight_format_name(format), "/threads:", threads);
        for (const int64_t rows : {1, 8, 16}) {
          register_timed(
              str("matmul_codes_decode/rows:", rows, tail), benchmark::kMillisecond,
              [=](benchmark::State& state) { decode(state, *set, rows, format, threads); });
        }
        for (const Dims& dims : {Dims{576, 576}, {1536, 576}, {576, 1536}, {2048, 8192}}) {
          register_timed(str("matmul_codes_prefill/512x", dims.first, "x", dims.second, tail),
                         benchmark::kMicrosecond, [=](benchmark::State& state) {
                           prefill(state, *set, format, dims, threads);
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
