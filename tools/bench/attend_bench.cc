// Attention as small models have it. Decode reads K and V of the whole context once and is compared
// with the bare reading of as many bytes; prefill is arithmetic and is compared with bare f32
// multiply-adds. Both comparisons run beside the kernel, on the same threads.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <ctime>
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

// How keys and values are stored: a type, or codes with f16 parameters as larder's own quantized
// cache has them.
struct Storage {
  const char* name;
  DType dtype = DType::kBF16;
  KVQuant k{}, v{};
};

KVQuant by_token(int32_t bits, KVForm form, int32_t group) {
  return {.bits = bits, .form = form, .dtype = DType::kF16, .channel_group = group};
}
KVQuant by_channel(int32_t bits) {
  return {.bits = bits, .form = KVForm::kZeroScale, .dtype = DType::kF16, .token_group = 64};
}

// Bytes of one side of a layer: elements or codes, then scales, then zeros.
struct SideBytes {
  SideBytes(const KVQuant& quant, DType dtype, const Shapes& shapes, int64_t kv_len) {
    const auto bits = quant.bits > 0 ? quant.bits : static_cast<int64_t>(dtype_size(dtype)) * 8;
    token = shapes.head_dim * bits / 8;
    elements = shapes.kv_heads * kv_len * token;
    group = shapes.head_dim / quant.channel_group * 2;
    if (quant.bits > 0) parameters = shapes.kv_heads * kv_len / quant.token_group * group;
    all = elements + 2 * parameters;
  }
  int64_t token, elements, group, parameters = 0, all;
};

// Codes, or elements of `dtype`, of a spread of small values; parameters such that codes are, too.
void fill_side(std::byte* to, const SideBytes& bytes, const KVQuant& quant, DType dtype) {
  uint32_t state = 12345;
  const auto next = [&state] { return state = state * 1664525 + 1013904223; };
  const auto put16 = [](std::byte* at, uint16_t value) { std::memcpy(at, &value, 2); };
  if (quant.bits > 0) {
    for (int64_t i = 0; i < bytes.elements; ++i) to[i] = static_cast<std::byte>(next() >> 24);
    const auto codes = static_cast<float>(1 << quant.bits);
    for (int64_t i = 0; i < bytes.parameters; i += 2) {
      put16(to + bytes.elements + i, f32_to_f16(2 / codes));
      const float zero = quant.form == KVForm::kScaleShift ? 1 : codes / 2;
      put16(to + bytes.elements + bytes.parameters + i, f32_to_f16(zero));
    }
    return;
  }
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  for (int64_t i = 0; i < bytes.elements; i += size) {
    const float value = static_cast<float>(next() >> 16) / 32768 - 1;
    if (dtype == DType::kF32) {
      std::memcpy(to + i, &value, 4);
    } else {
      put16(to + i, f32_to_bf16(value));
    }
  }
}

// One layer's keys and values of one row, and a step of queries at its end.
class Problem {
 public:
  Problem(Allocator& allocator, const Shapes& shapes, int64_t kv_len, int64_t q_len,
          const Storage& storage, int64_t layers)
      : k_bytes_(storage.k, storage.dtype, shapes, kv_len),
        v_bytes_(storage.v, storage.dtype, shapes, kv_len),
        kv_(allocator, Shape{layers, k_bytes_.all + v_bytes_.all}, DType::kU8, "bench"),
        q_(filled(allocator, Shape{q_len, shapes.heads, shapes.head_dim}, DType::kF32)),
        out_(allocator, q_.view().shape, DType::kF32, "bench"),
        position_(static_cast<size_t>(q_len)),
        len_(static_cast<int32_t>(kv_len)) {
    std::iota(position_.begin(), position_.end(), kv_len - q_len);
    q_start_[1] = static_cast<int32_t>(q_len);
    args_.out = out_, args_.q = q_, args_.compute = storage.dtype;
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
    segment.k.quant = storage.k, segment.v.quant = storage.v;
    place(segment.k, storage.dtype, k_bytes_, kv_len);
    place(segment.v, storage.dtype, v_bytes_, kv_len);
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::byte* at = kv_.view().bytes() + layer * (k_bytes_.all + v_bytes_.all);
      fill_side(at, k_bytes_, storage.k, storage.dtype);
      fill_side(at + k_bytes_.all, v_bytes_, storage.v, storage.dtype);
    }
  }

  AttendArgs of_layer(int64_t layer) {
    const auto base = reinterpret_cast<uintptr_t>(kv_.view().data) +
                      static_cast<uintptr_t>(layer * (k_bytes_.all + v_bytes_.all));
    point(args_.kv.segment[0].k, k_bytes_, base);
    point(args_.kv.segment[0].v, v_bytes_, base + static_cast<uintptr_t>(k_bytes_.all));
    return args_;
  }
  const TensorView& kv() const { return kv_.view(); }
  const TensorView& out() const { return out_.view(); }

 private:
  static void place(KVSide& side, DType dtype, const SideBytes& bytes, int64_t kv_len) {
    side.dtype = dtype;
    side.token_stride = bytes.token, side.head_stride = kv_len * bytes.token;
    side.quant.token_stride = bytes.group;
    side.quant.head_stride = kv_len / side.quant.token_group * bytes.group;
  }
  static void point(KVSide& side, const SideBytes& bytes, uintptr_t base) {
    side.data = base;
    side.quant.scale = base + static_cast<uintptr_t>(bytes.elements);
    side.quant.zero = side.quant.scale + static_cast<uintptr_t>(bytes.parameters);
  }

  SideBytes k_bytes_, v_bytes_;
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
  // Of weights rounded to bf16, where the set does so.
  const float error = args.compute == DType::kBF16 ? 0x1p-8f : 1e-4f;
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(got[i] - out.as<float>()[i]) <= error)) return false;
  return true;
}

// Medians of so many runs: setting a problem up takes longer than running it.
constexpr int kRuns = 11;
// Enough layers that none is left in a cache when its turn comes again.
constexpr int64_t kColdBytes = 96 << 20;

int64_t cold_layers(const Shapes& shapes, int64_t kv_len, const Storage& storage) {
  if (getenv("HOT")) return 1;

  const int64_t layer = SideBytes(storage.k, storage.dtype, shapes, kv_len).all +
                        SideBytes(storage.v, storage.dtype, shapes, kv_len).all;
  return std::max<int64_t>(1, kColdBytes / layer);
}

void decode(benchmark::State& state, const Kernels& set, const Shapes& shapes, int64_t kv_len,
            const Storage& storage, int threads) {
  Machine machine(set, threads);
  const int64_t layers = cold_layers(shapes, kv_len, storage);
  Problem problem(machine.allocator, shapes, kv_len, 1, storage, layers);
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

// Seconds of processor time, all threads together.
double processor_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

// Bf16 and another storage by turns, so that both meet the same machine: how much longer bf16
// takes, by the clock and in processor time (which says little where threads wait for each other).
void decode_codes(benchmark::State& state, const Kernels& set, const Shapes& shapes, int64_t kv_len,
                  const Storage& storage, int threads) {
  Machine machine(set, threads);
  struct Side {
    Side(Machine& on, const Shapes& shapes, int64_t kv_len, const Storage& storage)
        : layers(cold_layers(shapes, kv_len, storage)),
          problem(on.allocator, shapes, kv_len, 1, storage, layers) {}
    void time(Machine& on) {
      const double begin = processor_seconds();
      const double all = seconds([&] {
        for (int64_t layer = 0; layer < layers; ++layer)
          on.kernels.attend(on.exec(), problem.of_layer(layer));
      });
      clock.push_back(all / static_cast<double>(layers));
      processor.push_back((processor_seconds() - begin) / static_cast<double>(layers));
    }
    int64_t layers;
    Problem problem;
    std::vector<double> clock, processor;
  };
  Side bf16(machine, shapes, kv_len, {.name = "bf16"}), codes(machine, shapes, kv_len, storage);
  if (!is_right(machine, bf16.problem) || !is_right(machine, codes.problem))
    return state.SkipWithError("wrong result");
  for (auto _ : state) {
    bf16.time(machine);
    codes.time(machine);
    state.SetIterationTime(codes.clock.back());
  }
  const auto ratio = [](const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> ratios;
    for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
    return median(ratios);
  };
  state.counters["processor_us"] = median(codes.processor) * 1e6;
  state.counters["bf16_processor_us"] = median(bf16.processor) * 1e6;
  state.counters["of_bf16"] = ratio(bf16.clock, codes.clock);
  state.counters["of_bf16_processor"] = ratio(bf16.processor, codes.processor);
}

void prefill(benchmark::State& state, const Kernels& set, const Shapes& shapes, int64_t kv_len,
             const Storage& storage, int threads) {
  constexpr int64_t kQueries = 512, kRounds = 1'000'000;
  Machine machine(set, threads);
  Problem problem(machine.allocator, shapes, kv_len, kQueries, storage, 1);
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

using Body = void (*)(benchmark::State&, const Kernels&, const Shapes&, int64_t, const Storage&,
                      int);

void add(const char* kind, Body body, const Kernels* set, const Shapes& shapes, int64_t kv_len,
         const Storage& storage, int threads) {
  const std::string name = str(kind, "/", shapes.name, "/kv", kv_len, "/", set->name, "/",
                               storage.name, "/threads:", threads);
  register_timed(
      name, benchmark::kMicrosecond,
      [=](benchmark::State& state) { body(state, *set, shapes, kv_len, storage, threads); }, kRuns);
}

void add_codes(const Kernels* set, int threads) {
  for (const Storage& storage :
       {Storage{.name = "int8_token",
       .k = by_token(8, KVForm::kSymmetric, 64),
       .v = by_token(8, KVForm::kSymmetric, 64)},
        Storage{
            .name = "int8_channel", .k = by_channel(8), .v = by_token(8, KVForm::kZeroScale, 64)},
        Storage{.name = "int4_token",
        .k = by_token(4, KVForm::kScaleShift, 64),
        .v = by_token(4, KVForm::kScaleShift, 64)},
        Storage{.name = "int4_token_g32",
        .k = by_token(4, KVForm::kZeroScale, 32),
        .v = by_token(4, KVForm::kZeroScale, 32)},
        Storage{
            .name = "int4_channel", .k = by_channel(4), .v = by_token(4, KVForm::kZeroScale, 64)},
        Storage{
            .name = "int2_channel", .k = by_channel(2), .v = by_token(2, KVForm::kZeroScale, 32)},
        Storage{.name = "int3_token",  // widened before the set sees it
                .k = by_token(3, KVForm::kZeroScale, 64),
        .v = by_token(3, KVForm::kZeroScale, 64)}}) {
    add("attend_decode_codes", decode_codes, set, kSmall, 4096, storage, threads);
    if (storage.k.bits != 3) add("attend_prefill", prefill, set, kSmall, 4096, storage, threads);
  }
}

int register_all() {
  for (const Kernels* set : available_kernel_sets()) {
    // avx512_vnni attends as avx512 does, avx512_bf16 but where all is bf16, amx_bf16 as that.
    const std::string_view name = set->name;
    if (name == "reference" || name == "avx512_vnni" || name == "amx_bf16") continue;
    const bool bf16_alone = name == "avx512_bf16";
    for (const int threads : thread_counts()) {
      for (const Shapes& shapes : {kSmall, kLarge}) {
        for (const int64_t kv_len : {512, 4096}) {
          for (const Storage& storage :
               {Storage{.name = "bf16"}, Storage{.name = "f32", .dtype = DType::kF32}}) {
            if (bf16_alone && storage.dtype != DType::kBF16) continue;
            add("attend_decode", decode, set, shapes, kv_len, storage, threads);
            add("attend_prefill", prefill, set, shapes, kv_len, storage, threads);
          }
        }
      }
      add_codes(set, threads);
    }
  }
  return 0;
}

const int registered = register_all();

}  // namespace
}  // namespace larder::bench
