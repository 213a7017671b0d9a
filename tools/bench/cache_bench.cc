// What a cache operation costs, on a dynamic cache of SmolLM2's shape in bf16: fork, the first
// append after it and a reorder that moves nothing beside copying the cache; save and load beside
// writing the same bytes to a file and syncing it (in the current folder).
#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "larder/base/file.h"
#include "larder/base/str.h"
#include "larder/cache/cache_file.h"
#include "larder/cache/registry.h"
#include "tools/bench/machine.h"

namespace larder::bench {
namespace {

constexpr int32_t kLayers = 30, kHeads = 3, kHeadDim = 64;

// Appends `count` tokens to row 0 of every layer.
void append(Cache& cache, const Exec& exec, const TensorView& kv, int64_t count) {
  const int64_t first = cache.seq_len(0);
  std::vector<int64_t> position(static_cast<size_t>(count));
  std::iota(position.begin(), position.end(), first);
  const int32_t total = static_cast<int32_t>(count), q_start[] = {0, total}, slot = 0;
  const Step step{1, total, q_start, position.data(), &slot, false};
  const TensorView tokens = kv.slice(0, 0, count);
  cache.begin(step);
  for (int32_t i = 0; i < cache.num_layers(); ++i) {
    cache.kv(i).append(exec, tokens, tokens, step);
    cache.layer(i).commit(step);
  }
}

// Every block into memory of its own.
std::vector<Buffer> copied(const Cache& cache, Allocator& allocator) {
  std::vector<Buffer> copies;
  for (int32_t i = 0; i < cache.num_layers(); ++i) {
    cache.layer(i).for_each_block([&](CacheBlock& block) {
      copies.emplace_back(allocator, block.size(), "kv");
      std::memcpy(copies.back().data(), block.data(), block.size());
    });
  }
  return copies;
}

Cache empty_cache(Allocator& allocator) {
  return CacheRegistry().make("dynamic",
                              std::vector<LayerSpec>(kLayers, LayerSpec{kHeads, kHeadDim, 0}),
                              {.dtype = DType::kBF16}, allocator);
}

void save_and_load(benchmark::State& state) {
  constexpr int64_t kTokens = 4096;
  Machine machine(choose_kernels(), 1);
  Cache cache = empty_cache(machine.allocator);
  const Tensor kv = filled(machine.allocator, Shape{kTokens, kHeads, kHeadDim}, DType::kF32);
  append(cache, machine.exec(), kv, kTokens);
  const CacheOrigin origin{"{}", "", ""};
  const std::vector<std::vector<int32_t>> tokens = {std::vector<int32_t>(kTokens, 1)};
  const std::filesystem::path path = "cache_bench.safetensors", plain = "cache_bench.plain";
  std::vector<double> plain_time, save_time, load_time;
  for (auto _ : state) {
    save_time.push_back(
        seconds([&] { save_cache(path, cache, tokens, origin, machine.allocator); }));
    const MappedFile saved(path);
    plain_time.push_back(seconds([&] {
      AtomicFile file(plain);
      file.write(saved.bytes().data(), saved.bytes().size());
      file.commit();
    }));
    Cache loaded = empty_cache(machine.allocator);
    load_time.push_back(seconds([&] { CacheFile(path).load(loaded, origin); }));
    state.SetIterationTime(save_time.back());
  }
  std::filesystem::remove(path);
  std::filesystem::remove(plain);
  state.counters["write_and_sync_ms"] = median(plain_time) * 1e3;
  state.counters["save_speed_%"] = 100 * median(plain_time) / median(save_time);
  state.counters["load_speed_%"] = 100 * median(plain_time) / median(load_time);
}

void fork(benchmark::State& state, int64_t tokens) {
  Machine machine(choose_kernels(), 1);
  Cache cache = empty_cache(machine.allocator);
  const Tensor kv = filled(machine.allocator, Shape{tokens, kHeads, kHeadDim}, DType::kF32);
  append(cache, machine.exec(), kv, tokens);
  const int32_t identity[] = {0};
  std::vector<double> copy_time, fork_time, append_time, reorder_time;
  for (auto _ : state) {
    copy_time.push_back(
        seconds([&] { benchmark::DoNotOptimize(copied(cache, machine.allocator)); }));
    std::vector<Cache> forked;
    fork_time.push_back(seconds([&] { forked.push_back(cache.fork()); }));
    append_time.push_back(seconds([&] { append(forked[0], machine.exec(), kv, 1); }));
    reorder_time.push_back(seconds([&] { cache.select_rows(identity); }));
    state.SetIterationTime(fork_time.back());
  }
  const double copy = median(copy_time);
  state.counters["copy_ms"] = copy * 1e3;
  state.counters["fork_%"] = 100 * median(fork_time) / copy;
  state.counters["first_append_%"] = 100 * median(append_time) / copy;
  state.counters["identity_reorder_%"] = 100 * median(reorder_time) / copy;
}

int register_all() {
  register_timed("cache_file/tokens:4096", benchmark::kMillisecond, save_and_load);
  // A length that fills its last block, and one that leaves a block to be parted.
  for (const int64_t tokens : {4096, 4128}) {
    register_timed(str("cache_fork/tokens:", tokens), benchmark::kMicrosecond,
                   [=](benchmark::State& state) { fork(state, tokens); });
  }
  return 0;
}

const int registered = register_all();

}  // namespace
}  // namespace larder::bench
