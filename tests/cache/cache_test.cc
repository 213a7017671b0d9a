// What every cache kind promises, over all registered kinds.
#include "larder/cache/cache.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "tests/support/kv_steps.h"

namespace larder::test {
namespace {

constexpr int64_t kCapacity = 200;

Cache make(const std::string& kind, Allocator& host, int layers = 2, DType dtype = DType::kF32,
           int64_t capacity = kCapacity) {
  const std::vector<LayerSpec> specs(static_cast<size_t>(layers), LayerSpec{2, 4, 0});
  CacheOptions options{dtype, capacity};
  options.config = exact_config(kind);
  return CacheRegistry().make(kind, specs, options, host);
}

class EveryKind : public ::testing::TestWithParam<std::string> {
 protected:
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
  const Exec& exec_ = machine_.exec;
};
INSTANTIATE_TEST_SUITE_P(Registry, EveryKind, ::testing::ValuesIn(CacheRegistry().names()));

TEST_P(EveryKind, KeepsWhatRowsOfDifferentLengthsWereFed) {
  Cache cache = make(GetParam(), host_);
  feed(cache, exec_, {{0, numbers(0, 70)}, {1, numbers(1000, 3)}, {2, numbers(2000, 130)}});
  feed(cache, exec_, {{2, {2130}}, {0, {70, 71}}});
  for (int32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(kept(cache, layer, 0), numbers(0, 72));
    EXPECT_EQ(kept(cache, layer, 1), numbers(1000, 3));
    EXPECT_EQ(kept(cache, layer, 2), numbers(2000, 131));
  }
  EXPECT_EQ(cache.batch(), 3);
  EXPECT_EQ(cache.seq_len(2), 131);
  EXPECT_EQ(cache.seq_len(7), 0);
}

TEST_P(EveryKind, RoundsToItsDtype) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Cache cache = make(GetParam(), host_, 1, dtype);
    feed(cache, exec_, {{0, {0.25f, -3, 96}}});
    EXPECT_EQ(kept(cache, 0, 0), (std::vector<float>{0.25f, -3, 96}));
  }
}

TEST_P(EveryKind, RefusesAStepThatLeavesAGap) {
  Cache cache = make(GetParam(), host_);
  feed(cache, exec_, {{0, numbers(0, 5)}});
  const int64_t position = 6;
  const int32_t q_start[] = {0, 1}, slot = 0;
  EXPECT_THROW(cache.begin({1, 1, q_start, &position, &slot, false}), Error);
  EXPECT_EQ(kept(cache, 1, 0), numbers(0, 5));
}

TEST_P(EveryKind, Case03_CropTakesRowsOfDifferentLengths) {
  Cache cache = make(GetParam(), host_);
  feed(cache, exec_, {{0, numbers(0, 140)}, {1, numbers(1000, 10)}});
  cache.crop(std::vector<int64_t>{65, 999});
  EXPECT_EQ(kept(cache, 0, 0), numbers(0, 65));
  EXPECT_EQ(kept(cache, 1, 1), numbers(1000, 10));
  feed(cache, exec_, {{0, {-1}}, {1, {-2}}});
  EXPECT_EQ(kept(cache, 1, 0).back(), -1);
  EXPECT_EQ(cache.seq_len(0), 66);
  EXPECT_EQ(kept(cache, 0, 1).back(), -2);
  cache.crop(std::vector<int64_t>{0, INT64_MIN});
  EXPECT_EQ(cache.seq_len(0), 0);
  EXPECT_EQ(cache.seq_len(1), 0);
  feed(cache, exec_, {{0, {7}}});
  EXPECT_EQ(kept(cache, 0, 0), (std::vector<float>{7}));
}

TEST_P(EveryKind, Case05_SelectGathersRowsAndTheyPartAfterwards) {
  for (const std::vector<int32_t>& source : {std::vector<int32_t>{2, 2, 0, 2},
                                             {1, 0, 3, 2},
                                             {1, 2, 3, 0},
                                             {3, 3, 3, 3},
                                             {3},
                                             {},
                                             {0, 0, 1, 1, 2, 2, 3, 3}}) {
    Cache cache = make(GetParam(), host_);
    std::vector<Feed> feeds;
    for (int32_t row = 0; row < 4; ++row)
      feeds.push_back({row, numbers(100.0f * static_cast<float>(row), 5 + 30 * row)});
    feed(cache, exec_, feeds);
    cache.select_rows(source);
    ASSERT_EQ(cache.batch(), static_cast<int32_t>(source.size()));
    std::vector<Feed> more;
    for (size_t i = 0; i < source.size(); ++i)
      more.push_back({static_cast<int32_t>(i), {-static_cast<float>(i) - 1}});
    if (!source.empty()) feed(cache, exec_, more);
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (size_t i = 0; i < source.size(); ++i) {
        std::vector<float> expected = feeds[static_cast<size_t>(source[i])].tokens;
        expected.push_back(-static_cast<float>(i) - 1);
        EXPECT_EQ(kept(cache, layer, static_cast<int32_t>(i)), expected);
      }
    }
  }
}

TEST_P(EveryKind, Case05_AnIndexOutsideTheBatchIsRefusedAndNothingMoves) {
  Cache cache = make(GetParam(), host_);
  feed(cache, exec_, {{0, numbers(0, 3)}, {1, numbers(10, 3)}});
  EXPECT_THROW(cache.select_rows(std::vector<int32_t>{1, 2}), Error);
  EXPECT_THROW(cache.select_rows(std::vector<int32_t>{-1, 0}), Error);
  EXPECT_EQ(kept(cache, 1, 0), numbers(0, 3));
  EXPECT_EQ(kept(cache, 1, 1), numbers(10, 3));
}

TEST_P(EveryKind, Case12_ResetForgetsEverything) {
  Cache cache = make(GetParam(), tracking_);
  const size_t pool = tracking_.of("kv").live;
  EXPECT_TRUE(pool == 0 || CacheRegistry().find(GetParam()).has_own_pool);
  feed(cache, exec_, {{0, numbers(0, 9)}});
  cache.reset();
  EXPECT_EQ(cache.seq_len(0), 0);
  EXPECT_EQ(cache.batch(), 0);
  EXPECT_EQ(tracking_.of("kv").live, pool);
  feed(cache, exec_, {{0, numbers(50, 4)}, {1, numbers(60, 2)}});
  EXPECT_EQ(kept(cache, 1, 0), numbers(50, 4));
  EXPECT_EQ(kept(cache, 1, 1), numbers(60, 2));
}

TEST_P(EveryKind, ATentativeStepCountsOnlyWhatIsAccepted) {
  Cache cache = make(GetParam(), host_);
  feed(cache, exec_, {{0, numbers(0, 62)}, {1, numbers(100, 3)}});
  const FedStep draft(cache, {{0, numbers(62, 5)}, {1, numbers(103, 5)}}, 2, 4, true);
  cache.begin(draft.step());
  for (int32_t layer = 0; layer < 2; ++layer) {
    cache.kv(layer).append(exec_, draft.k(), draft.v(), draft.step());
    cache.layer(layer).commit(draft.step());
    EXPECT_EQ(cache.layer(layer).seq_len(0), 62);
  }
  cache.accept(draft.step(), std::vector<int32_t>{4, 0});
  EXPECT_EQ(kept(cache, 1, 0), numbers(0, 66));
  EXPECT_EQ(kept(cache, 1, 1), numbers(100, 3));
}

TEST_P(EveryKind, ACancelledStepLeavesNoTrace) {
  Cache cache = make(GetParam(), tracking_);
  feed(cache, exec_, {{0, numbers(0, 64)}});
  const size_t live = tracking_.of("kv").live;
  const FedStep fed(cache, {{0, numbers(64, 9)}, {1, numbers(100, 70)}}, 2, 4);
  cache.begin(fed.step());
  cache.kv(0).append(exec_, fed.k(), fed.v(), fed.step());
  cache.layer(0).commit(fed.step());
  cache.cancel(fed.step());
  EXPECT_EQ(kept(cache, 0, 0), numbers(0, 64));
  EXPECT_EQ(cache.batch(), 1);
  EXPECT_EQ(tracking_.of("kv").live, live);
}

TEST_P(EveryKind, WhenMemoryRunsOutNoLayerHasChanged) {
  if (CacheRegistry().find(GetParam()).has_own_pool) GTEST_SKIP() << "has all its memory";
  for (size_t fail_at = 0; fail_at < 40; ++fail_at) {
    FaultAllocator faults(tracking_);
    {
      Cache cache = make(GetParam(), faults, 3);
      feed(cache, exec_, {{0, numbers(0, 64)}});
      const size_t live = tracking_.of("kv").live;
      faults.arm(fail_at);
      const std::vector<Feed> more = {{0, numbers(64, 70)}, {1, numbers(500, 70)}};
      try {
        feed(cache, exec_, more);
        ASSERT_GE(fail_at, 2u) << "the step allocates in more than one layer";
        return;
      } catch (const OutOfMemory& error) {
        EXPECT_TRUE(error.tag() == "kv" || error.tag() == "scratch") << error.tag();
      }
      EXPECT_EQ(tracking_.of("kv").live, live);
      EXPECT_EQ(cache.batch(), 1);
      faults.arm(SIZE_MAX);
      feed(cache, exec_, more);
      EXPECT_EQ(kept(cache, 2, 0), numbers(0, 134));
      EXPECT_EQ(kept(cache, 2, 1), numbers(500, 70));
    }
    EXPECT_EQ(tracking_.of("kv").live, 0u);
  }
}

TEST_P(EveryKind, Case49_ACacheMovesWithItsTokens) {
  Cache cache = make(GetParam(), host_);
  feed(cache, exec_, {{0, numbers(0, 9)}});
  Cache moved = std::move(cache);
  feed(moved, exec_, {{0, {9}}});
  EXPECT_EQ(kept(moved, 1, 0), numbers(0, 10));
}

TEST(CacheRegistry, NamesWhatThereIsWhenAskedForSomethingElse) {
  try {
    CacheRegistry().find("paged_turbo");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("\"paged_turbo\""), std::string::npos) << text;
    EXPECT_NE(text.find("dynamic, dynamic_full, static"), std::string::npos) << text;
  }
}

TEST(CacheRegistry, TakesAKindOfTheUsersOwn) {
  CacheRegistry registry;
  registry.add({"mine", CacheRegistry().find("dynamic").make, false});
  HostAllocator host;
  Cache cache = registry.make("mine", std::vector<LayerSpec>{{1, 8, 0}}, {}, host);
  EXPECT_EQ(cache.num_layers(), 1);
  EXPECT_THROW(registry.add({"mine", nullptr, false}), Error);
}

TEST(CacheRegistry, RefusesADtypeThatNoCacheStores) {
  HostAllocator host;
  EXPECT_THROW(make("dynamic", host, 1, DType::kI8), Error);
  EXPECT_THROW(make("static", host, 1, DType::kF32, 0), Error);
}

}  // namespace
}  // namespace larder::test
