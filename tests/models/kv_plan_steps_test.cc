// The plan of a generation's steps, against real caches fed in the same steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "larder/models/kv_plan.h"
#include "tests/support/kernel_exec.h"
#include "tests/support/kv_steps.h"

namespace larder::test {
namespace {

struct Seen {
  int64_t kv = 0, file = 0, scratch = 0;
};

// A cache of the kind, fed with prompts and then with single tokens.
class FedCache {
 public:
  FedCache(const KVPlanConfig& config, const KVLoad& load)
      : config_(config), load_(load), exec_(choose_kernels()), memory_(host_) {
    CacheOptions options = load.options;
    options.max_cache_len = load.tokens;
    std::vector<LayerSpec> specs;
    for (const int64_t window : config.windows)
      specs.push_back({static_cast<int32_t>(config.num_kv_heads),
                       static_cast<int32_t>(config.head_dim), window});
    cache_.emplace(CacheRegistry().make(load.kind, specs, options, memory_));
  }

  Seen run() {
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
    for (int64_t i = 0; i < load_.new_tokens; ++i) {
      std::vector<Feed> feeds;
      for (int32_t row = 0; row < load_.batch; ++row) feeds.push_back({row, {1}});
      step(feeds);
    }
    return {static_cast<int64_t>(memory_.of("kv").peak), file_,
            static_cast<int64_t>(memory_.of("scratch").peak)};
  }

 private:
  void step(const std::vector<Feed>& feeds) {
    const FedStep fed(*cache_, feeds, static_cast<int32_t>(config_.num_kv_heads),
                      static_cast<int32_t>(config_.head_dim));
    const Exec exec = exec_.exec();
    for (int32_t layer = 0; layer < cache_->num_layers(); ++layer) {
      cache_->layer(layer).reserve(fed.step());
      file_ = std::max(file_, bytes_of_blocks());
    }
    for (int32_t layer = 0; layer < cache_->num_layers(); ++layer) {
      cache_->kv(layer).append(exec, fed.k(), fed.v(), fed.step());
      cache_->layer(layer).commit(fed.step());
    }
  }
  int64_t bytes_of_blocks() const {
    int64_t bytes = 0;
    for (int32_t layer = 0; layer < cache_->num_layers(); ++layer)
      cache_->layer(layer).for_each_block(
          [&](CacheBlock& block) { bytes += static_cast<int64_t>(block.size()); });
    return bytes;
  }

  const KVPlanConfig& config_;
  const KVLoad& load_;
  KernelExec exec_;
  HostAllocator host_;
  TrackingAllocator memory_;
  std::optional<Cache> cache_;
  int64_t file_ = 0;
};

void expect_equal(const KVPlanConfig& config, const KVLoad& load) {
  SCOPED_TRACE(str(load.kind, " ", load.options.config, ", head_dim ", config.head_dim, ", tokens ",
                   load.tokens, ", new ", load.new_tokens, ", batch ", load.batch, ", rollback ",
                   load.options.rollback));
  const KVBytes plan = planned_kv_bytes(config, load);
  const Seen seen = FedCache(config, load).run();
  EXPECT_EQ(plan.kv, seen.kv);
  EXPECT_EQ(plan.flush_scratch, seen.scratch);
  if (load.kind.starts_with("offloaded")) {
    EXPECT_EQ(plan.file, seen.file);
  } else {
    EXPECT_EQ(plan.file, 0);
  }
}

KVPlanConfig config_of(int64_t head_dim, std::vector<int64_t> windows) {
  KVPlanConfig config;
  config.num_kv_heads = 2;
  config.head_dim = head_dim;
  config.windows = std::move(windows);
  return config;
}

struct Length {
  int64_t tokens, new_tokens;
};
constexpr Length kLengths[] = {{1, 0}, {65, 65}, {600, 0}, {600, 250}, {1100, 70}};

TEST(KVPlanSteps, EveryKindTakesWhatIsPlanned) {
  for (const std::vector<int64_t>& windows :
       {std::vector<int64_t>{0}, {0, 0, 0}, {100, 0, 100, 0}, {0, 700}, {1, 0, 64}}) {
    const KVPlanConfig config = config_of(16, windows);
    for (const std::string_view kind : planned_kinds())
      for (const Length& length : kLengths)
        for (const int64_t batch : {1, 3})
          expect_equal(config, {std::string(kind),
                                {DType::kBF16, 0, 0, ""},
                                batch,
                                length.tokens,
                                length.new_tokens});
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
          config_of(setting.head_dim, {100, 0}),
          {"quantized", {DType::kF16, 0, 0, setting.config}, 1, length.tokens, length.new_tokens});
      expect_equal(config_of(setting.head_dim, {0, 0, 0}),
                   {"offloaded", {DType::kF16, 0, 0, nested}, 2, length.tokens / 2, 5});
    }
  }
}

TEST(KVPlanSteps, ARollbackIsPlanned) {
  for (const char* kind : {"dynamic", "hybrid", "offloaded", "quantized"})
    expect_equal(
        config_of(64, {50, 0}),
        {kind, {DType::kF32, 0, 9, kind[0] == 'q' ? R"({"backend": "larder"})" : ""}, 1, 300, 100});
}

TEST(KVPlanSteps, RefusesWhatTheCacheRefusesAndKindsThatHaveNoPlan) {
  const KVPlanConfig config = config_of(16, {0});
  EXPECT_THROW(planned_kv_bytes(config, {"paged", {}, 1, 10, 0}), Error);
  EXPECT_THROW(
      planned_kv_bytes(config, {"quantized", {DType::kF32, 0, 0, R"({"x": 1})"}, 1, 10, 0}), Error);
  EXPECT_THROW(planned_kv_bytes(
                   config, {"offloaded", {DType::kF32, 0, 0, R"({"cache": "mamba"})"}, 1, 10, 0}),
               Error);
}

}  // namespace
}  // namespace larder::test
