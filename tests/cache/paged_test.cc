// The paged cache's pool: who has how many blocks, and what happens when there are none.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "larder/base/error.h"
#include "larder/cache/paged_blocks.h"
#include "larder/cache/registry.h"
#include "tests/support/cache_contents.h"
#include "tests/support/error_of.h"
#include "tests/support/machine.h"

namespace larder::test {
namespace {

constexpr LayerSpec kFull{2, 64, 0}, kSliding{2, 64, 24};

class Paged : public ::testing::Test {
 protected:
  Cache make(const std::string& config, std::vector<LayerSpec> specs = {kFull, kFull},
             int64_t rollback = 0) {
    return CacheRegistry().make("paged", specs, {DType::kBF16, 0, rollback, config}, tracking_);
  }
  static PagedBlocks& pool_of(const Cache& cache) {
    return *cache.layer(0).block_source()->as_paged();
  }
  static int32_t taken(const Cache& cache, size_t size = 0) {
    const BlockPool& pool = pool_of(cache).pool(size);
    return pool.num_blocks() - pool.num_free();
  }
  std::string refusal(const std::string& config) {
    return error_of([&] { make(config); });
  }

  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
};

TEST_F(Paged, TakesAllItsMemoryAtOnceAndNoneLater) {
  Cache cache = make(R"({"block_size":16,"num_blocks":32})");
  const size_t block = size_t{2} * 2 * 64 * 16 * 2;  // K and V, heads, head_dim, tokens, bf16
  EXPECT_EQ(tracking_.of("kv").live, size_t{2} * 32 * block);
  const size_t calls = tracking_.total().calls;
  for (int i = 0; i < 100; ++i) feed_random(cache, machine_.exec, {{0, 1}, {1, 2}});
  EXPECT_EQ(tracking_.total().calls, calls);
  EXPECT_EQ(taken(cache), 2 * (7 + 13));
}

TEST_F(Paged, RowsShareBlocksUntilOneWritesAndGiveAllBackAtTheEnd) {
  Cache cache = make(R"({"block_size":4,"num_blocks":64})");
  feed_random(cache, machine_.exec, {{0, 10}});
  EXPECT_EQ(taken(cache), 2 * 3);
  cache.select_rows(std::vector<int32_t>{0, 0, 0});
  EXPECT_EQ(taken(cache), 2 * 3);
  std::vector<int32_t> holders;
  for (int32_t id = 0; id < 64; ++id) holders.push_back(pool_of(cache).holders(0, id));
  EXPECT_EQ(std::ranges::count(holders, 3), 2 * 3);
  feed_random(cache, machine_.exec, {{1, 1}});  // its last block is half full
  EXPECT_EQ(taken(cache), 2 * 4);
  cache.crop(std::vector<int64_t>{0, 11, 0});
  EXPECT_EQ(taken(cache), 2 * 3);
  cache.reset();
  EXPECT_EQ(taken(cache), 0);
}

TEST_F(Paged, AFullPoolRefusesTheStepAndChangesNothing) {
  Cache cache = make(R"({"block_size":4,"num_blocks":5})");
  feed_random(cache, machine_.exec, {{0, 9}, {1, 4}});
  const auto before = contents(cache, 0);
  const int32_t had = taken(cache);
  const std::string text = error_of([&] {
    feed_random(cache, machine_.exec, {{0, 1}, {1, 5}, {2, 1}});
  });
  EXPECT_NE(text.find("all 10 blocks"), std::string::npos) << text;
  EXPECT_EQ(taken(cache), had);
  EXPECT_EQ(cache.batch(), 2);
  EXPECT_TRUE(contents(cache, 0) == before);
  feed_random(cache, machine_.exec, {{0, 3}, {1, 4}});  // what is left is enough for this
  EXPECT_EQ(pool_of(cache).pool(0).num_free(), 0);
}

TEST_F(Paged, BlocksBehindAWindowServeAnyLayer) {
  // The full layer needs 32 blocks, the sliding one at most 4: more than half of the pool.
  Cache cache = make(R"({"block_size":8,"num_blocks":18})", {kFull, kSliding});
  for (int i = 0; i < 256; ++i) {
    feed_random(cache, machine_.exec, {{0, 1}});
    ASSERT_LE(taken(cache),
              cache.layer(0).blocks_of(i + 1, 1) + cache.layer(1).blocks_of(i + 1, 1));
    ASSERT_LE(cache.kv(1).kept_len(0), 24 - 1 + 1 + 8);
    ASSERT_GE(cache.kv(1).kept_len(0), std::min(i + 1, 24));
  }
  EXPECT_EQ(taken(cache), 32 + 3);  // positions 232 to 255
}

TEST_F(Paged, TheRollbackMarginIsKept) {
  Cache cache = make(R"({"block_size":1,"num_blocks":200})", {kSliding, kFull}, 5);
  feed_random(cache, machine_.exec, {{0, 90}});
  feed_random(cache, machine_.exec, {{0, 1}});
  EXPECT_EQ(cache.kv(0).kept_len(0), 23 + 5 + 1);
  cache.crop(std::vector<int64_t>{85});
  EXPECT_EQ(cache.seq_len(0), 85);
  EXPECT_THROW(cache.crop(std::vector<int64_t>{60}), Error);
  EXPECT_EQ(cache.seq_len(0), 85);
  // The window has come back over blocks that were behind it: they must not go twice.
  feed_random(cache, machine_.exec, {{0, 1}});
  EXPECT_EQ(cache.kv(0).kept_len(0), 86 - 62);
}

// A shift by no whole number of blocks, over a window, in both directions along the list.
TEST_F(Paged, AShiftOfARowWhoseFirstBlocksAreGoneKeepsTheWindow) {
  const std::vector<float> one{1}, zero{0};
  for (const int64_t discard : {1, 3, 7, 8, 9, 13, 40}) {
    Cache cache = make(R"({"block_size":8,"num_blocks":64})", {kSliding, kFull});
    for (int i = 0; i < 10; ++i) feed_random(cache, machine_.exec, {{0, 9}});
    const int64_t kept = cache.kv(0).kept_len(0);
    const auto before = contents(cache, 0);
    cache.shift(0, std::vector<ContextShift>(2, ContextShift{0, discard, one, zero}));
    ASSERT_EQ(cache.seq_len(0), 90 - discard);
    ASSERT_EQ(cache.kv(0).kept_len(0), kept);  // turned by nothing, so the same bytes
    const auto after = contents(cache, 0);
    const auto sliding = static_cast<std::ptrdiff_t>(2 * kept * 2 * 64 * 2);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + sliding, after.begin())) << discard;
    feed_random(cache, machine_.exec, {{0, 30}});
  }
}

TEST_F(Paged, OfManyRowsLessThanFourPercentIsUnused) {
  Cache cache = make(R"({"block_size":16,"num_blocks":2400})", {{1, 8, 0}});
  std::vector<RandomFeed> rows;
  int64_t tokens = 0;
  for (int32_t row = 0; row < 32; ++row) {
    rows.push_back({row, 500 + row * 1000 / 31});
    tokens += rows.back().count;
  }
  feed_random(cache, machine_.exec, rows);
  EXPECT_LT(static_cast<double>(int64_t{16} * taken(cache) - tokens),
            0.04 * static_cast<double>(taken(cache) * 16));
}

TEST_F(Paged, QuantizedBlocksAndRecentExactOnesHavePoolsOfTheirOwn) {
  Cache cache = make(
      R"({"num_blocks":20,"num_exact_blocks":5,"quantized":{"nbits":4,"residual_length":64}})");
  PagedBlocks& pool = pool_of(cache);
  ASSERT_EQ(pool.num_sizes(), 2u);
  EXPECT_LT(pool.block_bytes(0), pool.block_bytes(1));
  for (int i = 0; i < 20; ++i) feed_random(cache, machine_.exec, {{0, 32}});
  // 640 tokens: 9 blocks of codes and one exact in each layer.
  EXPECT_EQ(taken(cache, 0), 2 * 9);
  EXPECT_EQ(taken(cache, 1), 2 * 1);
  const std::string text = error_of([&] { feed_random(cache, machine_.exec, {{1, 400}}); });
  EXPECT_NE(text.find("all 10 exact blocks"), std::string::npos) << text;
}

TEST_F(Paged, ASettingThatMakesNoSenseIsRefusedByName) {
  EXPECT_NE(refusal(R"({"block_size":0})").find("block_size 0 must be 1 to 256"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"block_size":257})").find("257"), std::string::npos);
  EXPECT_NE(refusal(R"({"blocks":3})").find("\"blocks\""), std::string::npos);
  EXPECT_NE(refusal(R"({"num_blocks":0})").find("num_blocks 0"), std::string::npos);
  EXPECT_NE(refusal(R"({"num_blocks":4,"pool_bytes":9})").find("one of"), std::string::npos);
  EXPECT_NE(refusal(R"({"pool_share":0.5})").find("memory limit"), std::string::npos);
  EXPECT_NE(refusal(R"({"pool_bytes":100})").find("100 bytes holds no block"), std::string::npos);
  const std::string both = refusal(R"({"block_size":16,"quantized":{}})");
  EXPECT_NE(both.find("16"), std::string::npos);
  EXPECT_NE(both.find("64"), std::string::npos);
  EXPECT_NE(refusal(R"({"num_blocks":2000000000})").find("2000000000 blocks for each of 2 layers"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"quantized":{"backend":"hqq"}})").find("hqq"), std::string::npos);
  EXPECT_EQ(tracking_.total().live, 0u);
}

TEST_F(Paged, APoolMayBeAShareOfTheMemoryLimit) {
  BudgetAllocator budget(tracking_, 1 << 20);
  const Buffer other(budget, 1 << 19, "weights");
  const Cache cache = CacheRegistry().make("paged", std::vector{kFull},
                                           {DType::kBF16, 0, 0, R"({"pool_share":0.5})"}, budget);
  EXPECT_EQ(pool_of(cache).pool(0).num_blocks(), (1 << 18) / 8192);
  EXPECT_LE(tracking_.of("kv").live, size_t{1} << 18);
}

TEST_F(Paged, ItsBlocksCannotBeOffloaded) {
  EXPECT_NE(error_of([&] {
              CacheRegistry().make("offloaded", std::vector{kFull},
                                   {DType::kBF16, 0, 0, R"({"cache":"paged"})"}, tracking_);
            }).find("pool of its own"),
            std::string::npos);
}

}  // namespace
}  // namespace larder::test
