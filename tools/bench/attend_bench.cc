// Attention as small models have it. Decode reads K and V of the whole context once and is compared
// with the bare reading of as many bytes; prefill is arithmetic and is compared with bare f32
// multiply-adds. Both comparisons run beside the kernel, on the same threads.
#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "larder/base/str.h"
#include "tools/bench/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace larder::bench {
namespace {

struct Shapes {
  const char* name;
  int64_t heads, kv_heads, head_dim;
};
// SmolLM2-135M, and a Llama of the 1B class.
constexpr Shapes kSmall{"h9x3_d64", 9, 3, 64}, kLarge{"h32x8_d128", 32, 8, 128};

// Flops that one round does on a thread.
constexpr double kFlopsPerRound = 10 * 16;

#if defined(__x86_64__)
// The empty asm keeps each product where it is.
__attribute__((target("avx2,fma"), noinline)) void fma_rounds(int64_t rounds) {
  const __m256 one = _mm256_set1_ps(1.0f);
  __m256 sum[10];
  for (__m256& s : sum) s = _mm256_setzero_ps();
  for (int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 10
    for (__m256& s : sum) {
      s = _mm256_fmadd_ps(one, one, s);
      asm volatile("" : "+x"(s));
    }
  }
}
#else
void fma_rounds(int64_t) {}
#endif

// One layer's keys and values of one row, and a step of queries at its end.
class Problem {
 public:
  Problem(Allocator& allocator, const Shapes& shapes, int64_t kv_len, int64_t q_len, DType dtype,
          int64_t layers)
      : kv_(filled(allocator, Shape{layers, 2, shapes.kv_heads, kv_len, shapes.head_dim}, dtype)),
        q_(filled(allocator, Shape{q_len, shapes.heads, shapes.head_dim}, DType::kF32)),
        out_(allocator, q_.view().shape, DType::kF32, "bench"),
        position_(static_cast<size_t>(q_len)),
        len_(static_cast<int32_t>(kv_len)) {
    std::iota(position_.begin(), position_.end(), kv_len - q_len);
    q_start_[1] = static_cast<int32_t>(q_len);
    args_.out = out_, args_.q = q_;
    args_.batch = 1, args_.q_start = q_start_, args_.q_position = position_.data();
    args_.scale = 1 / std::sqrt(static_cast<float>(shapes.head_dim));
    args_.kv = {.num_segments = 1,
                .num_kv_heads = static_cast<int32_t>(shapes.kv_heads),
                .head_dim = static_cast<int32_t>(shapes.head_dim),
                .segment = {}};
    KVSegment& segment = args_.kv.segment[0];
    segment.block_table = &table_, segment.table_stride = 1, segment.block_size = len_;
    segment.first_position = &first_, segment.begin = &begin_;
    segment.len = &len_, segment.max_len = len_;
    const auto element = static_cast<int64_t>(dtype_size(dtype));
    segment.k.dtype = segment.v.dtype = dtype;
    segment.k.token_stride = segment.v.token_stride = shapes.head_dim * element;
    segment.k.head_stride = segment.v.head_stride = kv_len * shapes.head_dim * element;
  }

  AttendArgs of_layer(int64_t layer) {
    const int64_t side = kv_.view().byte_size() / kv_.view().shape[0] / 2;
    const auto base = reinterpret_cast<uintptr_t>(kv_.view().data);
    args_.kv.segment[0].k.data = base + static_cast<uintptr_t>(2 * layer * side);
    args_.kv.segment[0].v.data = base + static_cast<uintptr_t>((2 * layer + 1) * side);
    return args_;
  }
  const TensorView& kv() const { return kv_.view(); }
  const TensorView& out() const { return out_.view(); }

 private:
  Tensor kv_, q_, out_;
  std::vector<int64_t> position_;
  int32_t q_start_[2] = {0, 0}, begin_ = 0, len_;
  int64_t first_ = 0, table_ = 0;
  AttendArgs args_;
};

// The last query against the reference set.
bool is_right(Machine& machine, Problem& problem) {
  AttendArgs args = problem.of_layer(0);
  const int64_t last = args.q.shape[0] - 1;
  machine.scratch.reserve(machine.kernels.attend_scratch(args, machine.threads.size()));
  machine.kernels.attend(machine.exec(), args);
  const TensorView out = args.out.slice(0, last, last + 1);
  const std::vector<float> got(out.as<float>(), out.as<float>() + out.count());
  const int32_t one[2] = {0, 1};
  args.out = out, args.q = args.q.slice(0, last, last + 1);
  args.q_start = one, args.q_position += last;
  machine.scratch.reserve(reference_kernels().attend_scratch(args, 1));
  reference_kernels().attend(machine.exec(), args);
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(got[i] - out.as<float>()[i]) <= 1e-4f)) return false;
  return true;
}

// Medians of so many runs: setting a problem up takes longer than running it.
constexpr int kRuns = 11;
// Enough layers that none is left in a cache when its turn comes again.
constexpr int64_t kColdBytes = 96 << 20;

void decode(benchmark::State& state, const Kernels& set, const Shapes& shapes, int64_t kv_len,
            DType dtype, int threads) {
  Machine machine(set, threads);
  const int64_t layer_bytes =
      2 * shapes.kv_heads * kv_len * shapes.head_dim * static_cast<int64_t>(dtype_size(dtype));
  const int64_t layers = std::max<int64_t>(1, kColdBytes / layer_bytes);
  Problem problem(machine.allocator, shapes, kv_len, 1, dtype, layers);
  if (!is_right(machine, problem)) return state.SkipWithError("wrong result");
  const auto bytes = static_cast<size_t>(problem.kv().byte_size());
  std::vector<double> read, run;
  for (auto _ : state) {
    read.push_back(seconds([&] { read_bytes(machine.threads, problem.kv().data, bytes); }));
    run.push_back(seconds([&] {
      for (int64_t layer = 0; layer < layers; ++layer)
        set.attend(machine.exec(), problem.of_layer(layer));
    }));
    state.SetIterationTime(run.back() / static_cast<double>(layers));
  }
  state.counters["GB/s"] = static_cast<double>(bytes) / median(run) * 1e-9;
  state.counters["bare_GB/s"] = static_cast<double>(bytes) / median(read) * 1e-9;
  state.counters["of_bare"] = median(read) / median(run);
}

void prefill(benchmark::State& state, const Kernels& set, const Shapes& shapes, int64_t kv_len,
             DType dtype, int threads) {
  constexpr int64_t kQueries = 512, kRounds = 1'000'000;
  Machine machine(set, threads);
  Problem problem(machine.allocator, shapes, kv_len, kQueries, dtype, 1);
  if (!is_right(machine, problem)) return state.SkipWithError("wrong result");
  std::vector<double> peak, run;
  for (auto _ : state) {
    const double s = seconds([&] {
      machine.threads.parallel_for(threads, [&](int64_t, int64_t, int) { fma_rounds(kRounds); });
    });
    peak.push_back(s / (kFlopsPerRound * static_cast<double>(kRounds) * threads));
    run.push_back(seconds([&] { set.attend(machine.exec(), problem.of_layer(0)); }));
    state.SetIterationTime(run.back());
  }
  // Visible pairs of query and key, two products of head_dim each.
  const double pairs = static_cast<double>(kQueries) *
                       (static_cast<double>(kv_len) - static_cast<double>(kQueries - 1) / 2);
  const double flops = 4 * pairs * static_cast<double>(shapes.heads * shapes.head_dim);
  state.counters["GFLOP/s"] = flops / median(run) * 1e-9;
  state.counters["peak_GFLOP/s"] = 1e-9 / median(peak);
  state.counters["of_peak"] = median(peak) * flops / median(run);
}

using Body = void (*)(benchmark::State&, const Kernels&, const Shapes&, int64_t, DType, int);

void add(const char* kind, Body body, const Kernels* set, const Shapes& shapes, int64_t kv_len,
         int threads) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const std::string name = str(kind, "/", shapes.name, "/kv", kv_len, "/", set->name, "/",
                                 dtype_name(dtype), "/threads:", threads);
    benchmark::RegisterBenchmark(
        name.c_str(),
        [=](benchmark::State& state) { body(state, *set, shapes, kv_len, dtype, threads); })
        ->UseManualTime()
        ->Iterations(kRuns)
        ->Unit(benchmark::kMicrosecond);
  }
}

int register_all() {
  for (const Kernels* set : available_kernel_sets()) {
    // avx512_bf16 attends as avx512 does.
    if (set == &reference_kernels() || set->name == std::string_view("avx512_bf16")) continue;
    for (const int threads : thread_counts()) {
      for (const Shapes& shapes : {kSmall, kLarge}) {
        for (const int64_t kv_len : {512, 4096}) {
          add("attend_decode", decode, set, shapes, kv_len, threads);
          add("attend_prefill", prefill, set, shapes, kv_len, threads);
        }
      }
    }
  }
  return 0;
}

const int registered = register_all();

}  // namespace
}  // namespace larder::bench
