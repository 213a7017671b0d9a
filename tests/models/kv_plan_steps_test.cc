// The plan of a generation's steps, against real caches fed in the same steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/paged_blocks.h"
#include "larder/cache/registry.h"
#include "larder/models/kv_plan.h"
#include "tests/support/error_of.h"
#include "tests/support/kernel_exec.h"
#include "tests/support/kv_steps.h"

namespace larder::test {
namespace {

using Layers = std::vector<LayerSpec>;

struct Seen {
  int64_t kv = 0, file = 0, scratch = 0;
  std::vector<int64_t> most_taken;  // of a pool, by size of block
};

// A cache of the kind, fed with sources, prompts and then with single tokens.
class FedCache {
 public:
  // `block_size`: of a pool that has to hold all rows.
  FedCache(const Layers& layers, const KVLoad& load, int64_t block_size = 1)
      : layers_(layers), load_(load), exec_(choose_kernels()), memory_(host_) {
    CacheOptions options = load.options;
    options.max_cache_len = load.tokens;
    if (block_size > 1)
      options.max_cache_len =
          load.batch * ((load.tokens + block_size - 1) / block_size) * block_size;
    cache_.emplace(CacheRegistry().make(load.kind, layers, options, memory_));
  }

  Seen run() {
    feed_cross();
    const int64_t prompt = load_.tokens - load_.new_tokens;
    std::vector<int64_t> left(static_cast<size_t>(load_.batch), prompt);
    while (std::ranges::any_of(left, [](int64_t n) { return n > 0; })) {
      std::vector<Feed> feeds;
      int64_t room = 512;
      for (int32_t row = 0; row < load_.batch; ++row) {
        int64_t& of_row = left[static_cast<size_t>(row)];
        const int64_t n = std::min({of_row, room, cache_->step_limit(row)});
        if (n > 0) feeds.push_back({row, numbers(0, static_cast<int>(n))});
        of_row -= n, room -= n;
      }
      step(feeds);
    }
    for (int64_t i = 0; i < load_.new_tokens; ++i) step(rows_of(1));
    seen_.kv = static_cast<int64_t>(memory_.of("kv").peak);
    seen_.scratch = static_cast<int64_t>(memory_.of("scratch").peak);
    return seen_;
  }

 private:
  std::vector<Feed> rows_of(int64_t tokens) const {
    std::vector<Feed> feeds;
    for (int32_t row = 0; row < load_.batch; ++row)
      feeds.push_back({row, numbers(0, static_cast<int>(tokens))});
    return feeds;
  }
  void feed_cross() {
    for (int32_t l = 0; load_.source_tokens > 0 && l < cache_->num_cross(); ++l) {
      KVLayer& layer = cache_->cross(l);
      const FedStep fed(*cache_, rows_of(load_.source_tokens), layer.spec().num_kv_heads,
                        layer.spec().head_dim);
      layer.reserve(fed.step());
      layer.append(exec_.exec(), fed.k(), fed.v(), fed.step());
      layer.commit(fed.step());
    }
  }
  void step(const std::vector<Feed>& feeds) {
    const LayerSpec& first = layers_.front();
    const FedStep fed(*cache_, feeds, std::max(first.num_kv_heads, 1), std::max(first.head_dim, 1));
    const Exec exec = exec_.exec();
    for (int32_t layer = 0; layer < cache_->num_layers(); ++layer) {
      cache_->layer(layer).reserve(fed.step());
      seen_.file = std::max(seen_.file, bytes_of_blocks());
      look_at_pool(cache_->layer(layer));
    }
    for (int32_t layer = 0; layer < cache_->num_layers(); ++layer) {
      if (cache_->layer(layer).as_kv() != nullptr)
        cache_->kv(layer).append(exec, fed.k(), fed.v(), fed.step());
      cache_->layer(layer).commit(fed.step());
    }
  }
  int64_t bytes_of_blocks() const {
    int64_t bytes = 0;
    for (int32_t layer = 0; layer < cache_->num_layers(); ++layer)
      if (cache_->layer(layer).spec().kind != LayerKind::kState)
        cache_->layer(layer).for_each_block(
            [&](CacheBlock& block) { bytes += static_cast<int64_t>(block.size()); });
    return bytes;
  }
  void look_at_pool(const CacheLayer& layer) {
    const PagedBlocks* pool = layer.block_source() ? layer.block_source()->as_paged() : nullptr;
    if (pool == nullptr) return;
    seen_.most_taken.resize(pool->num_sizes());
    for (size_t size = 0; size < pool->num_sizes(); ++size) {
      const int64_t taken = pool->pool(size).num_blocks() - pool->pool(size).num_free();
      seen_.most_taken[size] = std::max(seen_.most_taken[size], taken);
    }
  }

  const Layers& layers_;
  const KVLoad& load_;
  KernelExec exec_;
  HostAllocator host_;
  TrackingAllocator memory_;
  std::optional<Cache> cache_;
  Seen seen_;
};

void expect_equal(const Layers& layers, const KVLoad& load, int64_t block_size = 1) {
  SCOPED_TRACE(str(load.kind, " ", load.options.config, ", head_dim ", layers.front().head_dim,
                   ", tokens ", load.tokens, ", new ", load.new_tokens, ", batch ", load.batch,
                   ", rollback ", load.options.rollback));
  const KVBytes plan = planned_kv_bytes(layers, load);
  const Seen seen = FedCache(layers, load, block_size).run();
  EXPECT_EQ(plan.kv, seen.kv);
  EXPECT_EQ(plan.flush_scratch, seen.scratch);
  EXPECT_EQ(plan.file, load.kind.starts_with("offloaded") ? seen.file : 0);
  ASSERT_EQ(plan.pool.size(), seen.most_taken.size());
  for (size_t size = 0; size < plan.pool.size(); ++size)
    EXPECT_EQ(plan.pool[size].most_taken, seen.most_taken[size]) << plan.pool[size].what;
}

Layers layers_of(int32_t head_dim, const std::vector<int64_t>& windows) {
  Layers layers;
  for (const int64_t window : windows) layers.push_back({2, head_dim, window});
  return layers;
}

LayerSpec state_layer(int32_t channels) {
  LayerSpec spec;
  spec.kind = LayerKind::kState;
  spec.conv_channels = channels;
  spec.conv_kernel = 3;
  spec.state_size = int64_t{5} * channels;
  return spec;
}

struct Length {
  int64_t tokens, new_tokens;
};
constexpr Length kLengths[] = {{1, 0}, {65, 65}, {600, 0}, {600, 250}, {1100, 70}};

TEST(KVPlanSteps, EveryKindTakesWhatIsPlanned) {
  for (const std::vector<int64_t>& windows :
       {std::vector<int64_t>{0}, {0, 0, 0}, {100, 0, 100, 0}, {0, 700}, {1, 0, 64}}) {
    const Layers layers = layers_of(16, windows);
    for (const std::string_view kind : planned_kinds())
      for (const Length& length : kLengths)
        for (const int64_t batch : {1, 3})
          expect_equal(layers,
                       {std::string(kind),
                        {DType::kBF16, 0, 0, ""},
                        batch,
                        length.tokens,
                        length.new_tokens},
                       kind == "paged" ? 16 : 1);
  }
}

// head_dim 16: groups of 64 cross tokens.
struct Setting {
  const char* config;
  int64_t head_dim;
};

TEST(KVPlanSteps, EverySettingOfQuantizedLayersTakesWhatIsPlanned) {
  for (const Setting& setting : std::vector<Setting>{
           {R"({"backend": "quanto", "nbits": 2})", 64},
           {R"({"backend": "quanto"})", 16},
           {R"({"axis_key": -1, "axis_value": -1})", 16},
           {R"({"axis_key": -1, "append_only": true})", 64},
           {R"({"residual_length": 0, "q_group_size": 32})", 16},
           {R"({"backend": "hqq", "residual_length": 200})", 64},
           {R"({"backend": "larder"})", 16},
           {R"({"backend": "larder", "nbits_key": 8, "nbits_value": 2, "residual_length": 0})", 64},
           {R"({"backend": "larder", "residual_length": 37, "keys_per_channel": false})", 64}}) {
    const std::string nested =
        str(R"({"cache": "quantized", "cache_config": )", setting.config, "}");
    for (const Length& length : {Length{65, 65}, {600, 250}, {1100, 10}}) {
      expect_equal(
          layers_of(setting.head_dim, {100, 0}),
          {"quantized", {DType::kF16, 0, 0, setting.config}, 1, length.tokens, length.new_tokens});
      expect_equal(layers_of(setting.head_dim, {0, 0, 0}),
                   {"offloaded", {DType::kF16, 0, 0, nested}, 2, length.tokens / 2, 5});
    }
  }
}

TEST(KVPlanSteps, ARollbackIsPlanned) {
  for (const char* kind : {"dynamic", "hybrid", "offloaded", "quantized"})
    expect_equal(
        layers_of(64, {50, 0}),
        {kind, {DType::kF32, 0, 9, kind[0] == 'q' ? R"({"backend": "larder"})" : ""}, 1, 300, 100});
}

TEST(KVPlanSteps, StatesAndCrossLayersArePlannedInEveryKind) {
  const Layers mamba(3, state_layer(7));
  Layers hybrid = layers_of(16, {50, 0});
  hybrid.insert(hybrid.begin() + 1, 2, state_layer(1000));
  hybrid.push_back(state_layer(3));
  Layers t5 = layers_of(16, {0, 0});
  t5.insert(t5.end(), 2, {3, 8, 0, LayerKind::kCross});
  for (const Layers& layers : {mamba, hybrid, t5})
    for (const std::string_view kind : planned_kinds())
      for (const Length& length : {Length{65, 65}, {600, 20}})
        for (const int64_t source : {1, 130})
          expect_equal(layers,
                       {std::string(kind),
                        {DType::kBF16, 0, 0, ""},
                        3,
                        length.tokens,
                        length.new_tokens,
                        source},
                       kind == "paged" ? 16 : 1);
}

struct Pool {
  const char* config;
  int64_t block_size;
};

TEST(KVPlanSteps, EverySettingOfAPoolIsPlanned) {
  for (const Pool& pool : std::vector<Pool>{
           {R"({"block_size": 1})", 1},
           {R"({"block_size": 5})", 5},
           {R"({"num_blocks": 400, "block_size": 7})", 7},
           {R"({"pool_bytes": 1000000})", 16},
           {R"({"quantized": {}, "num_blocks": 40})", 64},
           {R"({"quantized": {"nbits": 8, "residual_length": 0}})", 64},
           {R"({"quantized": {"nbits_key": [4, 16, 2]}, "num_exact_blocks": 50})", 64},
           {R"({"quantized": {"nbits": 16}, "pool_bytes": 2000000})", 64}}) {
    for (const int64_t rollback : {0, 9})
      for (const Length& length : {Length{65, 65}, {600, 250}, {1100, 10}})
        expect_equal(layers_of(16, {0, 100, 0}),
                     {"paged",
                      {DType::kF16, 0, rollback, pool.config},
                      2,
                      length.tokens / 2,
                      length.new_tokens / 2},
                     pool.block_size);
  }
}

TEST(KVPlanSteps, RowsThatAPoolHasNoRoomForAreRefusedAsThePoolRefusesThem) {
  const Layers layers = layers_of(16, {0, 50});
  for (const char* quantized : {"", R"(, "num_exact_blocks": 8, "quantized": {})"}) {
    int fitted = 0;
    for (const int blocks : {2, 5, 10, 20, 30, 60}) {
      const KVLoad load{"paged",
                        {DType::kF32, 0, 0, str("{\"num_blocks\": ", blocks, quantized, "}")},
                        2,
                        400,
                        20};
      const std::string planned = error_of([&] { planned_kv_bytes(layers, load); });
      EXPECT_EQ(planned, error_of([&] { FedCache(layers, load).run(); })) << blocks;
      fitted += planned.empty() ? 1 : 0;
    }
    EXPECT_GT(fitted, 0);
    EXPECT_LT(fitted, 6);
  }
}

TEST(KVPlanSteps, TheKindWithinAnotherOneIsPlanned) {
  const Layers layers = layers_of(16, {0, 100});
  for (const char* config : {R"({"cache": "static"})",
                             R"({"cache": "quantized", "cache_config": {"backend": "larder"}})",
                             R"({"cache": "paged", "cache_config": {"num_blocks": 90}})"})
    expect_equal(layers, {"encoder_decoder", {DType::kF32, 0, 0, config}, 2, 200, 20});
}

TEST(KVPlanSteps, RefusesWhatTheCacheRefusesAndKindsThatHaveNoPlan) {
  const Layers layers = layers_of(16, {0});
  EXPECT_THROW(planned_kv_bytes(layers, {"mine", {}, 1, 10, 0}), Error);
  EXPECT_THROW(
      planned_kv_bytes(layers, {"quantized", {DType::kF32, 0, 0, R"({"x": 1})"}, 1, 10, 0}), Error);
  for (const char* kind : {"offloaded", "encoder_decoder"})
    for (const char* config : {R"({"cache": "mine"})", R"({"cash": "static"})"})
      EXPECT_THROW(planned_kv_bytes(layers, {kind, {DType::kF32, 0, 0, config}, 1, 10, 0}), Error);
  EXPECT_THROW(planned_kv_bytes(
                   layers, {"offloaded", {DType::kF32, 0, 0, R"({"cache": "paged"})"}, 1, 10, 0}),
               Error);
  EXPECT_THROW(planned_kv_bytes(layers, {"paged", {DType::kI8, 0, 0, ""}, 1, 10, 0}), Error);
  EXPECT_THROW(planned_kv_bytes(layers, {"paged", {DType::kF32, 0, -1, ""}, 1, 10, 0}), Error);
}

}  // namespace
}  // namespace larder::test
