// The quantized cache's own backend: the rule, steps, memory, settings.
#include <limits>
#include <map>

#include "larder/base/error.h"
#include "larder/tensor/hadamard.h"
#include "tests/cache/larder_quantized_fixture.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/error_of.h"

namespace larder::test {
namespace {

TEST_F(LarderQuantized, TheSeamFollowsTheRuleAtEveryLength) {
  Cache cache = make(R"({"residual_length": 16})");
  for (int64_t p = 0; p < 300; ++p) {
    feed(cache, {1});
    EXPECT_EQ(seam_, 64 * (std::max<int64_t>(0, p - 16) / 64)) << "query at " << p;
    const Kept row = kept(cache);
    const int64_t coded = 64 * (std::max<int64_t>(0, p + 1 - 16) / 64);
    if (coded > 0) {
      EXPECT_FALSE(exact(row, coded - 1, coded - 1)) << "at length " << p + 1;
    }
    EXPECT_TRUE(exact(row, coded, coded)) << "at length " << p + 1;
    EXPECT_TRUE(exact(row, p, p));
  }
}

TEST_F(LarderQuantized, Case07_NewTokensOfAStepAreExactInThatStepAndNothingIsLost) {
  for (const int64_t residual : {0, 1, 4, 64, 100}) {
    Cache cache = make(str(R"({"residual_length": )", residual, "}"));
    int64_t len = 0;
    for (const int64_t count : {3, 1, 200, 1, 1, 5, 64, 63, 130}) {
      feed(cache, {count});
      EXPECT_EQ(seam_, 64 * (std::max<int64_t>(0, len - residual) / 64));
      len += count;
      EXPECT_EQ(cache.seq_len(0), len);
      const Kept row = kept(cache);
      ASSERT_EQ(row.len, len);
      const int64_t coded = 64 * (std::max<int64_t>(0, len - residual) / 64);
      for (int64_t i = 0; i < len; ++i) {
        if (i >= coded) {
          EXPECT_TRUE(exact(row, i, i)) << i << " of " << len;
        }
        EXPECT_NEAR(row.key(i, 3, 1), token(0, i, false)[kDim + 3], 0.6f);
        EXPECT_NEAR(row.value(i, 3, 1), token(0, i, true)[kDim + 3], 0.6f);
      }
    }
  }
}

TEST_F(LarderQuantized, Case07_ATokenIsQuantizedOnce) {
  for (const std::string& config : kConfigs) {
    Cache cache = make(config);
    feed(cache, {100});
    const Kept before = kept(cache);
    feed_one_by_one(cache, 400);
    const Kept after = kept(cache);
    for (int64_t i = 0; i < 64; ++i) EXPECT_TRUE(after.same_token(before, i)) << config << i;
  }
}

TEST_F(LarderQuantized, ChunksWithinTheStepLimitLeaveTheSameBytes) {
  for (const std::string& config : kConfigs) {
    Cache one = make(config), chunks = make(config);
    feed_one_by_one(one, 333);
    std::vector<int32_t> seams;
    while (chunks.seq_len(0) < 333) {
      const int64_t limit = chunks.step_limit(0);
      ASSERT_GT(limit, 0);
      const int64_t count = std::min({limit, int64_t{333} - chunks.seq_len(0), int64_t{50}});
      feed(chunks, {count});
    }
    EXPECT_TRUE(kept(one) == kept(chunks)) << config;
  }
}

TEST_F(LarderQuantized, Case11_ANonFiniteNumberStaysInItsGroup) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Cache cache = make(R"({"residual_length": 0, "q_group_size": 8})"),
          clean = make(R"({"residual_length": 0, "q_group_size": 8})");
    Fed fed = tokens_for(cache, {64}, {0});
    run(clean, fed);
    fed.k[10 * kHeads * kDim + 3] = bad;  // token 10, head 0, channel 3
    fed.v[20 * kHeads * kDim + 3] = bad;
    run(cache, fed);
    const Kept got = kept(cache), want = kept(clean);
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < 64; ++i) {
        for (int64_t d = 0; d < kDim; ++d) {
          const bool bad_k = head == 0 && d == 3 && i / 8 == 1,
                     bad_v = head == 0 && i == 20 && d < 8;
          EXPECT_TRUE(bad_k ? std::isnan(got.key(i, d, head))
                            : got.key(i, d, head) == want.key(i, d, head));
          EXPECT_TRUE(bad_v ? std::isnan(got.value(i, d, head))
                            : got.value(i, d, head) == want.value(i, d, head));
        }
      }
    }
  }
}

TEST_F(LarderQuantized, KeysAreStoredTurnedAndReadBack) {
  Cache cache = make(R"({"hadamard": true})");
  Fed fed = tokens_for(cache, {5}, {0});
  const KVView view = run(cache, fed);
  EXPECT_TRUE(view.hadamard);
  const auto* stored = reinterpret_cast<const float*>(
      view.segment[1].k.data + static_cast<uintptr_t>(view.segment[1].block_table[0]));
  std::vector<float> key = token(0, 0, false);
  hadamard(key.data(), 1, kDim);
  for (size_t d = 0; d < kDim; ++d) EXPECT_EQ(stored[d], key[d]);
  const Kept row = kept(cache);
  for (int64_t d = 0; d < kDim; ++d)
    EXPECT_NEAR(row.key(4, d, 1), token(0, 4, false)[static_cast<size_t>(kDim + d)], 1e-6f);
}

TEST_F(LarderQuantized, SlidingLayersGiveBackWhatIsBehindTheWindow) {
  for (const int64_t window : {6, 40, 100, 200}) {
    Cache cache = make(R"({"residual_length": 16})", tracking_, 1, DType::kF32, window, 10);
    for (int64_t p = 0; p < 500; ++p) {
      feed(cache, {1});
      EXPECT_LE(cache.kv(0).kept_len(0), window + 10 + 64);
      EXPECT_GE(cache.kv(0).kept_len(0), std::min(window - 1 + 10, p + 1));
    }
    const Kept row = kept(cache);
    EXPECT_TRUE(exact(row, row.len - 1, 499));
    EXPECT_EQ(cache.seq_len(0), 500);
    cache.crop(std::vector<int64_t>{490});
    EXPECT_NE(error_of([&] { cache.crop(std::vector<int64_t>{300}); }), "");
    EXPECT_EQ(cache.seq_len(0), 490);
    EXPECT_NE(error_of([&] { cache.shift(0, std::vector<ContextShift>{{1, 2, {}, {}}}); }), "");
    feed(cache, {3});
    EXPECT_EQ(cache.seq_len(0), 493);
    cache.crop(std::vector<int64_t>{0});
    feed(cache, {3});
    EXPECT_TRUE(exact(kept(cache), 2, 2));
  }
}

TEST_F(LarderQuantized, FourBitsTakeThreeTenthsOfBf16At4096Tokens) {
  const std::vector<LayerSpec> specs(2, LayerSpec{3, 64, 0});
  CacheRegistry registry;
  registry.add({"own", make_larder_quantized_layers, false});
  size_t bytes[2];
  for (const size_t i : {0, 1}) {
    TrackingAllocator tracking(host_);
    Cache cache = registry.make(i == 0 ? "dynamic" : "own", specs, {DType::kBF16, 0}, tracking);
    std::vector<float> x = random_floats(512 * 3 * 64, 1);
    const TensorView kv = TensorView::contiguous(x.data(), DType::kF32, {512, 3, 64});
    for (int64_t at = 0; at < 4096; at += 512) {
      std::vector<int64_t> position(512);
      for (int64_t j = 0; j < 512; ++j) position[static_cast<size_t>(j)] = at + j;
      const int32_t q_start[] = {0, 512}, slot = 0;
      const Step step{1, 512, q_start, position.data(), &slot, false};
      cache.begin(step);
      for (int32_t layer = 0; layer < 2; ++layer) {
        cache.kv(layer).append(machine_.exec, kv, kv, step);
        cache.layer(layer).commit(step);
      }
    }
    bytes[i] = tracking.of("kv").live;
  }
  EXPECT_LE(static_cast<double>(bytes[1]), 0.31 * static_cast<double>(bytes[0]));
}

TEST_F(LarderQuantized, StepsWithinABlockAllocateNothingAndAFlushOneBlock) {
  Cache cache = make(R"({"residual_length": 16})", tracking_, 2);
  feed(cache, {65});
  std::vector<Fed> fed;
  for (int i = 0; i < 20; ++i) {
    fed.push_back(tokens_for(cache, {1}, {0}));
    fed.back().position[0] += i;
  }
  for (int i = 0; i < 20; ++i) {
    const size_t before = allocations_so_far(), blocks = tracking_.of("kv").calls;
    run(cache, fed[static_cast<size_t>(i)]);
    const bool flushes = 65 + i + 1 == 80;
    EXPECT_EQ(tracking_.of("kv").calls - blocks, flushes ? 2u : 0u) << i;
    if (i > 0 && !flushes) {
      EXPECT_EQ(allocations_so_far(), before) << i;
    }
  }
}

TEST_F(LarderQuantized, WhenMemoryRunsOutNothingHasChanged) {
  for (size_t fail_at = 0; fail_at < 60; ++fail_at) {
    FaultAllocator faults(tracking_);
    {
      Cache cache = make(R"({"residual_length": 16})", faults, 2);
      feed(cache, {150, 20});
      const Kept before = kept(cache, 0, 1);
      const size_t live = tracking_.of("kv").live;
      faults.arm(fail_at);
      try {
        feed(cache, {140, 140});
        ASSERT_GE(fail_at, 8u);
        return;
      } catch (const OutOfMemory&) {
      }
      EXPECT_EQ(tracking_.of("kv").live, live);
      EXPECT_TRUE(kept(cache, 0, 1) == before);
      faults.arm(SIZE_MAX);
      feed(cache, {140, 140});
      EXPECT_EQ(cache.seq_len(0), 290);
      EXPECT_TRUE(exact(kept(cache, 0, 1), 289, 289));
    }
    EXPECT_EQ(tracking_.of("kv").live, 0u);
  }
  FAIL() << "the step never succeeded";
}

TEST_F(LarderQuantized, Case08_HeadSizesThatGroupsDoNotDivideGetAShortLastGroup) {
  for (const int32_t dim : {20, 80, 96}) {
    CacheRegistry registry;
    registry.add({"own", make_larder_quantized_layers, false});
    Cache cache = registry.make(
        "own", std::vector<LayerSpec>{{1, dim, 0}},
        {DType::kF32, 0, 0, R"({"keys_per_channel": false, "search": false, "residual_length": 0,
                                "q_group_size": 16})"},
        host_);
    std::vector<float> x = random_floats(64 * dim, 3);
    const TensorView kv = TensorView::contiguous(x.data(), DType::kF32, {64, 1, dim});
    std::vector<int64_t> position(64);
    for (int64_t i = 0; i < 64; ++i) position[static_cast<size_t>(i)] = i;
    const int32_t q_start[] = {0, 64}, slot = 0;
    const Step step{1, 64, q_start, position.data(), &slot, false};
    cache.begin(step);
    cache.kv(0).append(machine_.exec, kv, kv, step);
    cache.layer(0).commit(step);
    const Tensor k(host_, {1, 64, dim}, DType::kF32, "test"),
        v(host_, {1, 64, dim}, DType::kF32, "test");
    cache.kv(0).read(0, k, v);
    for (int64_t t = 0; t < 64; ++t) {
      for (int64_t begin = 0; begin < dim; begin += 16) {
        const float* from = x.data() + t * dim + begin;
        const int64_t count = std::min<int64_t>(16, dim - begin);
        const auto [low, high] = std::minmax_element(from, from + count);
        for (int64_t d = 0; d < count; ++d)
          EXPECT_LE(std::fabs(k.as<float>()[t * dim + begin + d] - from[d]),
                    (*high - *low) / 15 / 2 + 0.004f);
      }
    }
  }
}

TEST_F(LarderQuantized, LayersTakeWidthsFromAList) {
  CacheRegistry registry;
  registry.add({"own", make_larder_quantized_layers, false});
  const std::vector<LayerSpec> specs(3, LayerSpec{kHeads, kDim, 0});
  Cache cache = registry.make(
      "own", specs, {DType::kBF16, 0, 0, R"({"nbits_key": [8, 16, 4], "nbits_value": [4, 16, 2]})"},
      host_);
  EXPECT_EQ(cache.layer(0).format(),
            "larder k 8 bit by channel 64 f16, v 4 bit by token 64 f16, residual 128 bf16");
  EXPECT_EQ(cache.layer(1).format(), "dense bf16");
  EXPECT_EQ(cache.layer(2).format(),
            "larder k 4 bit by channel 64 f16, v 2 bit by token 64 f16, residual 128 bf16");
}

TEST_F(LarderQuantized, SettingsThatCannotBeAreRefusedByName) {
  const std::map<std::string, std::string> refused = {
      {R"({"nbits": 5})", "nbits 5"},
      {R"({"nbits_key": [4, 4]})", "nbits_key lists 2 widths for 1 layers"},
      {R"({"residual_length": -1})", "residual_length -1"},
      {R"({"q_group_size": 24})", "q_group_size 24"},
      {R"({"q_group_size": 0})", "q_group_size 0"},
      {R"({"scale_dtype": "i8"})", "scale_dtype \"i8\""},
      {R"({"axis_key": 0})", "\"axis_key\""},
      {R"([4])", "object"},
  };
  for (const auto& [config, words] : refused) {
    const std::string error = error_of([&, &config = config] { make(config); });
    EXPECT_NE(error.find(words), std::string::npos) << config << ": " << error;
  }
  CacheRegistry registry;
  registry.add({"own", make_larder_quantized_layers, false});
  const std::string error = error_of([&] {
    registry.make("own", std::vector<LayerSpec>{{1, 24, 0}},
                  {DType::kF32, 0, 0, R"({"hadamard": true})"}, host_);
  });
  EXPECT_NE(error.find("24"), std::string::npos) << error;
}

}  // namespace
}  // namespace larder::test
