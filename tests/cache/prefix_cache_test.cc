#include "larder/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "larder/cache/shared_blocks.h"
#include "tests/support/cache_contents.h"
#include "tests/support/error_of.h"
#include "tests/support/machine.h"

namespace larder::test {
namespace {

using Ids = std::vector<int32_t>;
constexpr LayerSpec kFull{2, 8, 0}, kSliding{2, 8, 6};

Ids upto(int32_t n) {
  Ids ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

class Prefixes : public ::testing::Test {
 protected:
  Cache make(const std::string& config, std::vector<LayerSpec> specs = {kFull, kFull},
             const char* kind = "paged") {
    CacheOptions options{DType::kF32, 200};
    options.config = config;
    return CacheRegistry().make(kind, specs, options, host_);
  }
  static int32_t taken(const Cache& cache) {
    const BlockPool& pool = cache.layer(0).block_source()->as_paged()->pool(0);
    return pool.num_blocks() - pool.num_free();
  }
  // Feeds what the row lacks of `ids`; numbers follow from slot and position, so equal prompts are
  // fed in equal slots here.
  void feed(Cache& cache, int32_t row, const Ids& ids) {
    feed_random(cache, machine_.exec,
                {{row, static_cast<int64_t>(ids.size()) - cache.seq_len(row)}});
  }
  void empty(Cache& cache, int32_t row) {
    std::vector<int64_t> len;
    for (int32_t r = 0; r < cache.batch(); ++r) len.push_back(r == row ? 0 : cache.seq_len(r));
    cache.crop(len);
  }

  HostAllocator host_;
  Machine machine_;
};

TEST_F(Prefixes, OfSaltsThatNeverComeAgainNothingIsLeft) {
  Cache cache = make(R"({"block_size":4,"num_blocks":10})");
  PrefixCache prefixes(cache);
  for (int i = 0; i < 50; ++i) {
    const Ids ids = upto(9);
    EXPECT_EQ(prefixes.match(ids, str("asked ", i)), 0);
    auto chain = prefixes.begin(str("salt ", i));
    prefixes.adopt(0, ids, chain);
    feed(cache, 0, ids);
    if (i % 2 == 0) prefixes.record(0, ids, chain);
    prefixes.release(chain);
    empty(cache, 0);
    EXPECT_LE(prefixes.num_salts(), 10 / 2) << "those that still have blocks";
  }
  EXPECT_GT(prefixes.num_salts(), 0);
  prefixes.clear();
  EXPECT_EQ(prefixes.num_salts(), 0);
}

TEST_F(Prefixes, ARowBeginsWithTheFullBlocksOfOneBeforeIt) {
  Cache cache = make(R"({"block_size":4,"num_blocks":20})");
  PrefixCache prefixes(cache);
  const Ids ids = upto(10);
  auto chain = prefixes.begin("");
  prefixes.adopt(0, ids, chain);
  EXPECT_EQ(cache.batch(), 0);
  feed(cache, 0, ids);
  prefixes.record(0, ids, chain);
  EXPECT_EQ(chain.blocks, 2);
  const auto before = contents(cache, 0);
  prefixes.release(chain);
  empty(cache, 0);
  EXPECT_EQ(taken(cache), 2 * 2);
  EXPECT_EQ(prefixes.reclaimable(), 2 * 2);

  auto again = prefixes.begin("");
  prefixes.adopt(0, ids, again);
  EXPECT_EQ(cache.seq_len(0), 8);
  feed(cache, 0, ids);
  EXPECT_TRUE(contents(cache, 0) == before);
  EXPECT_EQ(prefixes.stats().hit_tokens, 8);
  prefixes.release(again);
}

TEST_F(Prefixes, AtLeastOneTokenIsLeftToFeed) {
  Cache cache = make(R"({"block_size":4,"num_blocks":20})");
  PrefixCache prefixes(cache);
  auto chain = prefixes.begin("");
  feed(cache, 0, upto(8));
  prefixes.record(0, upto(8), chain);
  auto other = prefixes.begin("");
  prefixes.adopt(1, upto(8), other);
  EXPECT_EQ(cache.seq_len(1), 4);
  prefixes.release(chain);
  prefixes.release(other);
}

// Case 31: who writes into a block that another has copies it, whatever the prefix cache holds.
TEST_F(Prefixes, Case31_ARowThatIsCutIntoASharedBlockCopiesItBeforeItWrites) {
  Cache cache = make(R"({"block_size":4,"num_blocks":20})");
  PrefixCache prefixes(cache);
  auto chain = prefixes.begin("");
  feed(cache, 0, upto(9));
  prefixes.record(0, upto(9), chain);
  const auto before = contents(cache, 0);
  auto other = prefixes.begin("");
  prefixes.adopt(1, upto(9), other);
  cache.crop(std::vector<int64_t>{9, 6});
  feed(cache, 1, upto(12));
  EXPECT_TRUE(contents(cache, 0) == before);
  prefixes.release(chain);
  prefixes.release(other);
}

TEST_F(Prefixes, WhenThePoolIsEmptyTheBlocksUsedLongestAgoGo) {
  Cache cache = make(R"({"block_size":4,"num_blocks":6})");
  PrefixCache prefixes(cache);
  const Ids first = {1, 1, 1, 1, 1, 1, 1, 1}, second = {2, 2, 2, 2, 2, 2, 2, 2};
  for (const Ids& ids : {first, second}) {
    auto chain = prefixes.begin("");
    feed(cache, 0, ids);
    prefixes.record(0, ids, chain);
    prefixes.release(chain);
    empty(cache, 0);
  }
  EXPECT_EQ(taken(cache), 8);
  auto chain = prefixes.begin("");
  feed_random(cache, machine_.exec, {{0, 12}});  // 3 blocks a layer: one of `first` must go
  Ids probe = first;
  probe.push_back(0);
  prefixes.adopt(1, probe, chain);
  EXPECT_EQ(cache.seq_len(1), 4);
  empty(cache, 1);
  prefixes.release(chain);
  probe = second;
  probe.push_back(0);
  chain = prefixes.begin("");
  prefixes.adopt(1, probe, chain);
  EXPECT_EQ(cache.seq_len(1), 8);
  prefixes.release(chain);
}

TEST_F(Prefixes, BlocksThatARowHasAreNotTaken) {
  Cache cache = make(R"({"block_size":4,"num_blocks":4})");
  PrefixCache prefixes(cache);
  auto chain = prefixes.begin("");
  feed(cache, 0, upto(16));
  prefixes.record(0, upto(16), chain);
  const auto before = contents(cache, 0);
  EXPECT_FALSE(prefixes.reclaim());
  EXPECT_NE(error_of([&] { feed_random(cache, machine_.exec, {{1, 1}}); }), "");
  EXPECT_TRUE(contents(cache, 0) == before);
  prefixes.release(chain);
}

TEST_F(Prefixes, AWindowIsResumedWhereItsLastBlocksAreStillThere) {
  Cache cache = make(R"({"block_size":4,"num_blocks":40})", {kSliding, kFull});
  PrefixCache prefixes(cache);
  const Ids ids = upto(30);
  auto chain = prefixes.begin("");
  for (int32_t n : {9, 18, 30}) {
    const Ids part(ids.begin(), ids.begin() + n);
    feed(cache, 0, part);
    prefixes.record(0, part, chain);
  }
  auto other = prefixes.begin("");
  prefixes.adopt(1, ids, other);
  EXPECT_EQ(cache.seq_len(1), 28);
  EXPECT_GE(cache.kv(0).kept_len(1), 5);
  EXPECT_EQ(cache.kv(1).kept_len(1), 28);
  prefixes.release(chain);
  prefixes.release(other);
}

TEST_F(Prefixes, AHoleInAWindowEndsThePrefixBeforeIt) {
  Cache cache = make(R"({"block_size":4,"num_blocks":12})", {kSliding, kFull});
  PrefixCache prefixes(cache);
  const Ids ids = upto(28);
  auto chain = prefixes.begin("");
  for (int32_t n = 4; n <= 28; n += 4) {
    const Ids part(ids.begin(), ids.begin() + n);
    feed(cache, 0, part);
    prefixes.record(0, part, chain);
  }
  // The row has 7 blocks of the full layer and 2 or 3 of the sliding one; the prefix cache the
  // rest.
  EXPECT_GT(prefixes.reclaimable(), 0);
  while (prefixes.reclaim()) {
  }
  EXPECT_EQ(prefixes.reclaimable(), 0);
  Ids early(ids.begin(), ids.begin() + 13);
  auto other = prefixes.begin("");
  prefixes.adopt(1, early, other);
  EXPECT_EQ(cache.seq_len(1), 0) << "its window's blocks are gone";
  prefixes.release(other);
  Ids late = ids;
  late.push_back(1);
  other = prefixes.begin("");
  prefixes.adopt(1, late, other);
  EXPECT_EQ(cache.seq_len(1), 28);
  prefixes.release(chain);
  prefixes.release(other);
}

TEST_F(Prefixes, CachesThatCannotShareBlocksSayWhy) {
  const auto reason = [&](const char* kind, const std::string& config,
                          std::vector<LayerSpec> specs = {kFull}) {
    return why_no_shared_blocks(make(config, std::move(specs), kind));
  };
  EXPECT_EQ(reason("paged", ""), "");
  EXPECT_NE(reason("dynamic", "").find("pool"), std::string::npos);
  EXPECT_NE(reason("static", "").find("pool"), std::string::npos);
  EXPECT_NE(reason("paged", R"({"quantized":{"q_group_size":8}})").find("change"),
            std::string::npos);
  LayerSpec state;
  state.kind = LayerKind::kState;
  state.conv_channels = 2, state.conv_kernel = 2, state.state_size = 2;
  EXPECT_NE(reason("paged", "", {state, kFull}).find("recurrent"), std::string::npos);
}

// Rows come and go at random over few prompts and a small pool.
TEST_F(Prefixes, EveryRowHoldsWhatItWouldHoldAloneAndNothingIsLeftBehind) {
  for (const std::vector<LayerSpec>& specs :
       {std::vector{kFull, kFull}, std::vector{kSliding, kFull}, std::vector{kSliding, kSliding}}) {
    Cache cache = make(R"({"block_size":2,"num_blocks":24})", specs);
    PrefixCache prefixes(cache);
    std::mt19937 random(5);
    Ids ids;
    PrefixCache::Chain chain;
    bool open = false;
    int64_t hits = 0;
    for (int i = 0; i < 400; ++i) {
      if (!open) {
        ids.assign(random() % 20 + 1, 0);
        for (size_t t = 0; t < ids.size(); ++t)  // few prompts: equal beginnings are likely
          ids[t] = static_cast<int32_t>(t < 6 ? random() % 2 : t);
        chain = prefixes.begin(random() % 2 == 0 ? "a" : "b");
        prefixes.adopt(0, ids, chain);
        hits += cache.seq_len(0);
        open = true;
      } else if (random() % 3 == 0) {
        prefixes.release(chain);
        if (cache.batch() > 0) empty(cache, 0);
        open = false;
      } else {
        const auto more = static_cast<int64_t>(ids.size()) - cache.seq_len(0);
        if (more > 0)
          feed_random(cache, machine_.exec, {{0, more}});
        else
          ids.push_back(7), feed_random(cache, machine_.exec, {{0, 1}});
        prefixes.record(0, ids, chain);
        if (ids.size() < 24) continue;
        Cache fresh = make(R"({"block_size":2,"num_blocks":24})", specs);
        for (size_t t = 0; t < ids.size(); ++t) feed_random(fresh, machine_.exec, {{0, 1}});
        for (int32_t l = 0; l < 2; ++l) EXPECT_EQ(cache.kv(l).seq_len(0), fresh.kv(l).seq_len(0));
      }
    }
    EXPECT_GT(hits, 0);
    prefixes.release(chain);
    cache.reset();
    prefixes.clear();
    EXPECT_EQ(taken(cache), 0);
  }
}

}  // namespace
}  // namespace larder::test
