// Prefixes that one run leaves and the next one finds.
#include "larder/cache/prefix_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/cache/registry.h"
#include "tests/support/cache_contents.h"
#include "tests/support/error_of.h"
#include "tests/support/machine.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

using Ids = std::vector<int32_t>;
constexpr LayerSpec kFull{2, 8, 0}, kSliding{2, 8, 6};
const CacheOrigin kOrigin{R"({"hidden_size":8})", "00ff", "f32"};

Ids upto(int32_t n, int32_t first = 100) {
  Ids ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// A pool with its prefixes, as one run has them.
struct OneRun {
  explicit OneRun(int64_t num_blocks, const std::vector<LayerSpec>& specs = {kFull, kFull},
                  int64_t block_size = 4)
      : cache(make(num_blocks, specs, block_size)), prefixes(cache) {}
  static Cache make(int64_t num_blocks, const std::vector<LayerSpec>& specs, int64_t block_size) {
    static HostAllocator host;
    CacheOptions options{DType::kF32, 200};
    options.config = str(R"({"num_blocks":)", num_blocks, R"(,"block_size":)", block_size, "}");
    return CacheRegistry().make("paged", specs, options, host);
  }
  // A row that computes `ids`, leaves its blocks, and goes.
  void compute(const Ids& ids, std::string_view salt = "") {
    auto chain = prefixes.begin(salt);
    prefixes.adopt(0, ids, chain);
    feed_random(cache, machine.exec, {{0, static_cast<int64_t>(ids.size()) - cache.seq_len(0)}});
    prefixes.record(0, ids, chain);
    prefixes.release(chain);
    cache.crop(std::vector<int64_t>{0});
  }
  int64_t taken() const {
    const BlockPool& pool = cache.layer(0).block_source()->as_paged()->pool(0);
    return pool.num_blocks() - pool.num_free();
  }

  Machine machine;
  Cache cache;
  PrefixCache prefixes;
};

class PrefixFile : public ::testing::Test {
 protected:
  TempFolder folder_;
  std::filesystem::path path_ = folder_.path() / "prefixes.safetensors";
};

TEST_F(PrefixFile, GivesTheNextRunTheSameBlocksAndOrder) {
  OneRun first(40);
  first.compute(upto(14));
  Ids other = upto(12);
  other[5] = 7;  // the first block alike
  first.compute(other);
  first.compute(upto(9, 50));
  EXPECT_EQ(save_prefixes(path_, first.prefixes, kOrigin), 3 + 2 + 2);
  EXPECT_EQ(first.taken(), 2 * 7);

  OneRun next(40);
  EXPECT_EQ(load_prefixes(path_, next.prefixes, kOrigin), 7);
  EXPECT_EQ(next.taken(), 2 * 7);
  EXPECT_EQ(next.prefixes.reclaimable(), 2 * 7);
  EXPECT_EQ(next.prefixes.match(upto(14), ""), 12);
  EXPECT_EQ(next.prefixes.match(other, ""), 8);
  EXPECT_EQ(next.prefixes.match(upto(14), "tenant"), 0);

  // What a row begins with is what the first run computed.
  auto chain = next.prefixes.begin("");
  next.prefixes.adopt(0, upto(14), chain);
  auto before = first.prefixes.begin("");
  first.prefixes.adopt(0, upto(14), before);
  EXPECT_TRUE(contents(next.cache, 0) == contents(first.cache, 0));
  next.prefixes.release(chain);
  next.cache.crop(std::vector<int64_t>{0});

  // The one used longest ago goes first in both.
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(next.prefixes.reclaim());
  }
  EXPECT_EQ(next.prefixes.match(upto(9, 50), ""), 8);
  first.prefixes.release(before);
}

TEST_F(PrefixFile, KeepsWindowsResumableAndNoMore) {
  OneRun first(60, {kFull, kSliding});
  first.compute(upto(22));
  const int64_t resumable = first.prefixes.match(upto(22), "");
  save_prefixes(path_, first.prefixes, kOrigin);
  OneRun next(60, {kFull, kSliding});
  load_prefixes(path_, next.prefixes, kOrigin);
  EXPECT_EQ(next.prefixes.match(upto(22), ""), resumable);
  EXPECT_EQ(next.taken(), first.taken());
}

TEST_F(PrefixFile, ASmallerPoolTakesWhatWasUsedLast) {
  OneRun first(40);
  first.compute(upto(13));
  first.compute(upto(9, 50));
  save_prefixes(path_, first.prefixes, kOrigin);
  OneRun small(3);  // 6 blocks in all
  EXPECT_EQ(load_prefixes(path_, small.prefixes, kOrigin), 3);
  EXPECT_EQ(small.prefixes.match(upto(9, 50), ""), 8);
  EXPECT_EQ(small.prefixes.match(upto(13), ""), 4);
  EXPECT_EQ(small.taken(), 6);
}

TEST_F(PrefixFile, TwiceIsOnce) {
  OneRun first(40);
  first.compute(upto(13));
  save_prefixes(path_, first.prefixes, kOrigin);
  EXPECT_EQ(load_prefixes(path_, first.prefixes, kOrigin), 3);
  EXPECT_EQ(first.taken(), 2 * 3);
}

TEST_F(PrefixFile, PrefixesOfASaltAreNotWritten) {
  OneRun first(40);
  first.compute(upto(13), "tenant");
  EXPECT_EQ(save_prefixes(path_, first.prefixes, kOrigin), 0);
  EXPECT_FALSE(std::filesystem::exists(path_));
  first.compute(upto(9, 50));
  EXPECT_EQ(save_prefixes(path_, first.prefixes, kOrigin), 2);
}

TEST_F(PrefixFile, WhatDoesNotFitIsRefusedAndNothingChanges) {
  OneRun first(40);
  first.compute(upto(13));
  save_prefixes(path_, first.prefixes, kOrigin);
  const auto refusal = [&](OneRun& run, const CacheOrigin& origin) {
    std::string error = error_of([&] { load_prefixes(path_, run.prefixes, origin); });
    EXPECT_EQ(run.taken(), 0);
    return error;
  };
  OneRun same(40), blocks_of_8(40, {kFull, kFull}, 8);
  CacheOrigin other = kOrigin;
  other.weights = "0000";
  EXPECT_NE(refusal(same, other).find("other weights"), std::string::npos);
  EXPECT_NE(refusal(blocks_of_8, kOrigin).find("but this cache's are"), std::string::npos);

  // Any byte of it damaged, in the header or a block.
  const std::string whole = read_file(path_);
  for (size_t at = 9; at < whole.size(); at += 97) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    std::ofstream(path_, std::ios::binary) << damaged;
    EXPECT_NE(refusal(same, kOrigin), "") << at;
  }
  std::ofstream(path_, std::ios::binary) << whole.substr(0, whole.size() / 2);
  EXPECT_NE(refusal(same, kOrigin), "");
}

TEST_F(PrefixFile, HasANameOfItsOwnForEachModelAndLayout) {
  OneRun one(40), two(40, {kFull, kFull}, 8);
  CacheOrigin other = kOrigin;
  other.weights = "0000";
  EXPECT_EQ(prefix_file_name(one.prefixes, kOrigin), prefix_file_name(OneRun(8).prefixes, kOrigin));
  EXPECT_NE(prefix_file_name(one.prefixes, kOrigin), prefix_file_name(one.prefixes, other));
  EXPECT_NE(prefix_file_name(one.prefixes, kOrigin), prefix_file_name(two.prefixes, kOrigin));
}

}  // namespace
}  // namespace larder::test
