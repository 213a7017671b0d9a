// What the quantized kind costs, and steps that are tentative or taken back.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "larder/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/kv_decode.h"
#include "tests/support/kv_steps.h"
#include "tests/support/quantized_fixture.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

TEST_F(Quantized, MemoryAtFourBitsIsUnderAThirdOfBf16) {
  // 4096 tokens, groups of 64, residual 128: every block counts, used or not.
  const Shape3 shape{3, 64, 2};
  const auto bytes = [&](const char* backend, int64_t first, int64_t chunk) {
    Cache cache = make(str(R"({"backend":")", backend, R"("})"), shape, DType::kBF16);
    feed_more(cache, 0, first);
    double most = 0;
    while (cache.seq_len(0) < 4096) {
      feed_more(cache, 0, std::min(chunk, 4096 - cache.seq_len(0)));
      if (cache.seq_len(0) > 3968)
        most = std::max(most, static_cast<double>(tracking_.total().live));
    }
    return std::max(most, static_cast<double>(tracking_.total().live));
  };
  const double dense = 4096.0 * 2 * 3 * 64 * 2 * 2;
  EXPECT_LE(bytes("quanto", 4096, 1) / dense, 0.31);
  EXPECT_LE(bytes("quanto", 512, 512) / dense, 0.31);
  EXPECT_LE(bytes("quanto", 3900, 1) / dense, 0.31);
  EXPECT_LE(bytes("quanto", 3906, 1) / dense, 0.31);
  EXPECT_LE(bytes("hqq", 4000, 96) / dense, 0.31);
}

TEST_F(Quantized, AStepThatNeitherFlushesNorOpensABlockAllocatesNothing) {
  Cache cache = make(R"({"residual_length":128})", {2, 64, 2}, DType::kBF16);
  feed_more(cache, 0, 70);
  feed_more(cache, 0, 1);
  const size_t calls = tracking_.total().calls;
  for (int i = 0; i < 60; ++i) feed_more(cache, 0, 1);
  EXPECT_EQ(tracking_.total().calls, calls);
}

TEST_F(Quantized, ScratchOfAFlushGoesBackWhenTheLastLayerHasFlushed) {
  Cache cache = make(R"({"backend":"hqq","q_group_size":16,"residual_length":4})", {2, 8, 3});
  feed_more(cache, 0, 8);
  for (int i = 0; i < 4; ++i) feed_more(cache, 0, 1);
  EXPECT_EQ(tracking_.of("scratch").live, 0u);
  EXPECT_EQ(tracking_.of("scratch").peak,
            static_cast<size_t>(layer(cache).layout().scratch_bytes(8, 12)));
}

TEST_F(Quantized, ATentativeStepMayEndWithTheFlushAndNotPassIt) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape), single = make(config, shape);
    for (Cache* both : {&cache, &single}) feed_more(*both, 0, 8);
    int64_t len = 8;
    for (int round = 0; round < 12; ++round) {
      const int64_t limit = cache.tentative_limit(0);
      ASSERT_GE(limit, 1);
      const auto too_many = static_cast<int>(limit + 1);
      const FedStep past(cache, {{0, numbers(0, too_many)}}, shape.heads, shape.head_dim, true);
      EXPECT_THROW(cache.begin(past.step()), Error);
      const auto n = static_cast<int32_t>(std::min<int64_t>(limit, 1 + round % 4));
      const auto taken = static_cast<int32_t>(round % 3 == 2 ? n : std::min(n, 1 + round % 2));
      const FedStep draft(cache, {{0, numbers(static_cast<float>(len), n)}}, shape.heads,
                          shape.head_dim, true);
      cache.begin(draft.step());
      cache.kv(0).append(machine_.exec, draft.k(), draft.v(), draft.step());
      cache.layer(0).commit(draft.step());
      EXPECT_EQ(cache.seq_len(0), len);
      cache.accept(draft.step(), std::vector<int32_t>{taken});
      for (int32_t i = 0; i < taken; ++i)
        feed(single, machine_.exec, {{0, {static_cast<float>(len + i)}}});
      len += taken;
      ASSERT_EQ(cache.seq_len(0), len);
      ASSERT_TRUE(contents(cache, 0) == contents(single, 0)) << config << " round " << round;
      ASSERT_EQ(residual(cache), residual(single));
    }
  }
}

TEST_F(Quantized, ACancelledStepTakesItsTokensBack) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape);
    feed_more(cache, 0, 8);
    feed_more(cache, 0, 2);
    const auto before = contents(cache, 0);
    const size_t live = tracking_.total().live;
    const FedStep fed(cache, {{0, numbers(0, 9)}, {1, numbers(5, 3)}}, shape.heads, shape.head_dim);
    cache.begin(fed.step());
    cache.kv(0).append(machine_.exec, fed.k(), fed.v(), fed.step());
    cache.cancel(fed.step());
    EXPECT_TRUE(contents(cache, 0) == before) << config;
    EXPECT_EQ(tracking_.total().live, live);
    // Committed, and with a flush: the tokens go, those of the residual stay as codes.
    feed_more(cache, 0, 1);
    const FedStep flushing(cache, {{0, numbers(0, 8)}, {1, numbers(5, 3)}}, shape.heads,
                           shape.head_dim);
    const int64_t len = cache.seq_len(0);
    cache.begin(flushing.step());
    cache.kv(0).append(machine_.exec, flushing.k(), flushing.v(), flushing.step());
    cache.layer(0).commit(flushing.step());
    cache.cancel(flushing.step());
    EXPECT_EQ(cache.seq_len(0), len);
    EXPECT_EQ(cache.batch(), 1);
    EXPECT_EQ(tracking_.of("scratch").live, 0u);
    feed_more(cache, 0, 7);
    EXPECT_EQ(cache.seq_len(0), len + 7);
  }
}

TEST_F(Quantized, ARowDoesNotDependOnTheOthers) {
  for (const auto& [config, shape] : kFormats) {
    Cache both = make(config, shape), alone = make(config, shape);
    feed_random(both, machine_.exec, {{0, 9}, {1, 5}});
    feed_random(alone, machine_.exec, {{0, 9}});
    for (int i = 0; i < 7; ++i) {
      feed_random(both, machine_.exec, {{1, 2}, {0, 1}});
      feed_random(alone, machine_.exec, {{0, 1}});
    }
    EXPECT_TRUE(contents(both, 0) == contents(alone, 0)) << config;
  }
}

TEST_F(Quantized, FormatSaysWhatMustBeEqualForAnImageToFit) {
  EXPECT_EQ(layer(make(R"({"nbits_value":2,"axis_key":-1})", {2, 64}, DType::kBF16)).format(),
            "quantized keys quanto 4 bit axis -1 group 64, values quanto 2 bit axis 0 group 64, "
            "bf16");
}

}  // namespace
}  // namespace larder::test
