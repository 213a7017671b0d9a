// Layers with a window: what queries see, what is kept, and what can be taken back, over all kinds
// that drop tokens.
#include "larder/cache/sliding_layer.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "tests/support/kv_steps.h"
#include "tests/support/shown_keys.h"

namespace larder::test {
namespace {

constexpr int32_t kHeads = 2, kDim = 4;
constexpr size_t kTokenBytes = sizeof(float) * 2 * kHeads * kDim;

// Layer 0 slides, layer 1 is full.
Cache make(const std::string& kind, int64_t window, Allocator& host, int64_t rollback = 0,
           int64_t capacity = 400) {
  return CacheRegistry().make(kind,
                              std::vector<LayerSpec>{{kHeads, kDim, window}, {kHeads, kDim, 0}},
                              {DType::kF32, capacity, rollback, {}}, host);
}

// The text of the Error of this kind that `action` throws.
template <class Action>
std::string refusal(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

class SlidingKind : public ::testing::TestWithParam<std::string> {
 protected:
  bool fixed() const { return GetParam() != "dynamic"; }
  // What the ring keeps of a row of `len` tokens.
  int64_t kept_of(int64_t len, int64_t window, int64_t rollback = 0) const {
    return std::min(len, window + rollback - (fixed() ? 0 : 1));
  }
  // Feeds one step to both layers; checks what each query of it sees in layer 0.
  void feed_and_look(Cache& cache, const std::vector<Feed>& feeds, int64_t window) {
    const FedStep fed(cache, feeds, kHeads, kDim);
    const Step& step = fed.step();
    cache.begin(step);
    for (int32_t layer = 0; layer < 2; ++layer) {
      const KVView view = cache.kv(layer).append(exec_, fed.k(), fed.v(), step);
      for (int32_t b = 0; b < step.batch; ++b) {
        const auto keys = shown(view, b);
        for (int32_t i = step.q_start[b]; i < step.q_start[b + 1]; ++i) {
          const int64_t query = step.position[i];
          const int64_t first = layer == 0 ? std::max<int64_t>(0, query - window + 1) : 0;
          for (int64_t key = first; key <= query; ++key) {
            ASSERT_TRUE(keys.contains(key)) << "query " << query << " misses key " << key;
            EXPECT_EQ(keys.at(key), value(step.slot[b], key));
          }
        }
        ASSERT_FALSE(!keys.empty() && step.q_len(b) > 0 && layer == 0 &&
                     keys.begin()->first < step.position[step.q_start[b]] - window + 1)
            << "shows keys that no query sees";
      }
      cache.layer(layer).commit(step);
    }
  }
  static float value(int32_t row, int64_t position) {
    return static_cast<float>(int64_t{1000} * row + position);
  }
  static Feed next(const Cache& cache, int32_t row, int count) {
    return {row, numbers(value(row, cache.seq_len(row)), count)};
  }
  // Row 0 holds tokens value(row, p) for the last positions.
  void expect_kept(const Cache& cache, int32_t row, int64_t count) {
    const int64_t len = cache.seq_len(row);
    EXPECT_EQ(kept(cache, 0, row), numbers(value(row, len - count), static_cast<int>(count)));
  }
  size_t live() const { return tracking_.of("kv").live; }

  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
  const Exec& exec_ = machine_.exec;
};
INSTANTIATE_TEST_SUITE_P(Kinds, SlidingKind,
                         ::testing::Values("dynamic", "static", "sliding_window", "hybrid",
                                           "hybrid_chunked"));

TEST_P(SlidingKind, Case01_AQuerySeesExactlyItsWindowHoweverTokensAreFed) {
  for (const int64_t window : {1, 2, 4, 7, 64, 65, 100}) {
    for (const std::vector<int>& steps :
         {std::vector<int>(10, 1), {10}, {3, 1, 1, 3, 1}, {4, 6}, {63, 1, 1, 64, 130, 1, 1, 7}}) {
      Cache cache = make(GetParam(), window, host_);
      for (const int count : steps) {
        feed_and_look(cache, {next(cache, 0, count)}, window);
        expect_kept(cache, 0, kept_of(cache.seq_len(0), window));
      }
    }
  }
}

TEST_P(SlidingKind, Case02_EverySplitOfAPromptAcrossTheWindowKeepsTheSame) {
  for (const std::vector<int>& steps : {std::vector<int>{10}, {4, 6}, {6, 4}, {3, 7}, {5, 5}}) {
    Cache cache = make(GetParam(), 4, host_);
    for (const int count : steps) feed_and_look(cache, {next(cache, 0, count)}, 4);
    for (int32_t layer = 0; layer < 2; ++layer) EXPECT_EQ(cache.layer(layer).seq_len(0), 10);
    expect_kept(cache, 0, kept_of(10, 4));
    EXPECT_EQ(kept(cache, 1, 0), numbers(0, 10));
  }
}

TEST_P(SlidingKind, RowsOfDifferentLengthsHaveRingsOfTheirOwn) {
  Cache cache = make(GetParam(), 70, host_);
  feed_and_look(cache, {next(cache, 0, 90), next(cache, 1, 3), next(cache, 2, 69)}, 70);
  feed_and_look(cache, {next(cache, 2, 2), next(cache, 0, 1)}, 70);
  feed_and_look(cache, {next(cache, 1, 140), next(cache, 2, 0)}, 70);
  expect_kept(cache, 0, kept_of(91, 70));
  expect_kept(cache, 1, kept_of(143, 70));
  expect_kept(cache, 2, kept_of(71, 70));
}

TEST_P(SlidingKind, Case04_ACropPastWhatIsKeptIsRefusedAndNoLayerChanges) {
  for (const auto& [window, len, to] : {std::tuple{4, 7, 5}, {65, 200, 80}, {2, 3, 1}}) {
    Cache cache = make(GetParam(), window, host_);
    feed(cache, exec_, {next(cache, 0, 3), next(cache, 1, len)});
    const int64_t first = len - kept_of(len, window);
    if (first <= to - window + 1) continue;
    const std::vector<int64_t> cut{3, to};
    const std::string text = refusal(ErrorKind::kUnsupported, [&] { cache.crop(cut); });
    EXPECT_NE(text.find(str("from position ", std::max(0, to - window + 1))), std::string::npos)
        << text;
    EXPECT_NE(text.find(str("only those from ", first)), std::string::npos) << text;
    EXPECT_EQ(cache.layer(1).seq_len(1), len);
    EXPECT_EQ(cache.layer(1).seq_len(0), 3);
    expect_kept(cache, 1, kept_of(len, window));
    feed_and_look(cache, {next(cache, 1, 2), next(cache, 0, 1)}, window);
  }
}

TEST_P(SlidingKind, Case04_ADeclaredRollbackIsKeptAndExact) {
  for (const int64_t window : {1, 4, 64, 130}) {
    for (const int rollback : {1, 5, 70}) {
      Cache cache = make(GetParam(), window, host_, rollback);
      feed_and_look(cache, {next(cache, 0, 200)}, window);
      feed_and_look(cache, {next(cache, 0, 1)}, window);
      expect_kept(cache, 0, kept_of(201, window, rollback));
      cache.crop(std::vector<int64_t>{201 - rollback});
      EXPECT_EQ(cache.seq_len(0), 201 - rollback);
      feed_and_look(cache, {next(cache, 0, 1)}, window);
      feed_and_look(cache, {next(cache, 0, rollback)}, window);
      cache.crop(std::vector<int64_t>{0});
      feed_and_look(cache, {next(cache, 0, 7)}, window);
      expect_kept(cache, 0, kept_of(7, window, rollback));
    }
  }
}

TEST_P(SlidingKind, Case05_RowsMoveShareAndPart) {
  for (const std::vector<int32_t>& source : {std::vector<int32_t>{2, 2, 0, 2},
                                             {1, 0, 3, 2},
                                             {1, 2, 3, 0},
                                             {3, 3, 3, 3},
                                             {3},
                                             {},
                                             {0, 0, 1, 1, 2, 2, 3, 3}}) {
    Cache cache = make(GetParam(), 70, host_);
    std::vector<Feed> feeds;
    for (int32_t row = 0; row < 4; ++row) feeds.push_back(next(cache, row, 5 + 60 * row));
    feed(cache, exec_, feeds);
    std::vector<std::vector<float>> before;
    for (int32_t row = 0; row < 4; ++row) before.push_back(kept(cache, 0, row));
    cache.select_rows(source);
    ASSERT_EQ(cache.batch(), static_cast<int32_t>(source.size()));
    for (int round = 1; round < 4 && !source.empty(); ++round) {
      std::vector<Feed> more;
      for (size_t i = 0; i < source.size(); ++i)
        more.push_back({static_cast<int32_t>(i), {-static_cast<float>(10 * i) - 1.0f * round}});
      feed(cache, exec_, more);
      for (size_t i = 0; i < source.size(); ++i) {
        std::vector<float> row = before[static_cast<size_t>(source[i])];
        for (int r = 1; r <= round; ++r)
          row.push_back(-static_cast<float>(10 * i) - 1.0f * static_cast<float>(r));
        const auto keep = static_cast<size_t>(kept_of(INT32_MAX, 70));
        if (row.size() > keep) row.erase(row.begin(), row.end() - static_cast<int64_t>(keep));
        EXPECT_EQ(kept(cache, 0, static_cast<int32_t>(i)), row);
      }
    }
  }
}

TEST_P(SlidingKind, Case05_AnIdentityCostsNothingAndARowThatStaysIsNotTouched) {
  Cache cache = make(GetParam(), 70, tracking_);
  feed(cache, exec_, {next(cache, 0, 90), next(cache, 1, 90), next(cache, 2, 90)});
  feed(cache, exec_, {next(cache, 0, 1), next(cache, 1, 1), next(cache, 2, 1)});
  const size_t calls = tracking_.total().calls;
  const auto blocks = [&] {
    std::vector<const CacheBlock*> list;
    cache.layer(0).for_each_block([&](CacheBlock& block) { list.push_back(&block); });
    return list;
  };
  const auto before = blocks();
  cache.select_rows(std::vector<int32_t>{0, 1, 2});
  EXPECT_EQ(blocks(), before);
  feed(cache, exec_, {next(cache, 0, 1), next(cache, 1, 1), next(cache, 2, 1)});
  EXPECT_EQ(tracking_.total().calls, calls);
  EXPECT_EQ(blocks(), before) << "nothing was shared, so nothing was copied";
}

TEST_P(SlidingKind, AForkSharesPagesUntilOneOfTheTwoWrites) {
  Cache cache = make(GetParam(), 150, tracking_);
  feed(cache, exec_, {next(cache, 0, 200)});
  feed(cache, exec_, {next(cache, 0, 1)});
  const size_t before = live();
  Cache fork = cache.fork();
  EXPECT_EQ(live(), before);
  const auto was = kept(cache, 0, 0);
  feed(fork, exec_, {{0, {-1, -2}}});
  EXPECT_EQ(kept(cache, 0, 0), was);
  feed_and_look(cache, {next(cache, 0, 90)}, 150);
  EXPECT_EQ(kept(fork, 0, 0).back(), -2);
  EXPECT_EQ(kept(fork, 0, 0)[10], was[12]);
  cache.reset();
  EXPECT_EQ(kept(fork, 0, 0).back(), -2);
}

TEST_P(SlidingKind, AStepIsTakenBackAfterItsCommit) {
  for (const int64_t window : {1, 2, 5, 64, 70}) {
    for (const int before : {0, 1, 4, 63, 69, 200}) {
      for (const int count : {1, 3, 64, 80, 180}) {
        Cache cache = make(GetParam(), window, host_);
        if (before > 0) feed(cache, exec_, {next(cache, 0, before)});
        const auto was = kept(cache, 0, 0);
        const FedStep fed(cache, {{0, numbers(-500, count)}, {1, numbers(5000, count)}}, kHeads,
                          kDim);
        cache.begin(fed.step());
        cache.kv(0).append(exec_, fed.k(), fed.v(), fed.step());
        cache.layer(0).commit(fed.step());
        cache.cancel(fed.step());
        EXPECT_EQ(cache.seq_len(0), before);
        EXPECT_EQ(kept(cache, 0, 0), was);
        EXPECT_LE(cache.batch(), 1);
        feed_and_look(cache, {next(cache, 0, 2)}, window);
      }
    }
  }
}

TEST_P(SlidingKind, ATentativeStepCostsNothingToTakeBack) {
  for (const int64_t window : {1, 3, 6, 70}) {
    for (int accepted = 0; accepted <= 7; ++accepted) {
      Cache cache = make(GetParam(), window, host_);
      feed(cache, exec_, {next(cache, 0, 100), next(cache, 1, 2)});
      const FedStep draft(cache, {next(cache, 0, 7), next(cache, 1, 7)}, kHeads, kDim, true);
      cache.begin(draft.step());
      for (int32_t layer = 0; layer < 2; ++layer) {
        cache.kv(layer).append(exec_, draft.k(), draft.v(), draft.step());
        cache.layer(layer).commit(draft.step());
        EXPECT_EQ(cache.layer(layer).seq_len(0), 100);
      }
      cache.accept(draft.step(), std::vector<int32_t>{accepted, 7 - accepted});
      EXPECT_EQ(cache.seq_len(0), 100 + accepted);
      expect_kept(cache, 0, kept_of(100 + accepted, window));
      expect_kept(cache, 1, kept_of(9 - accepted, window));
      feed_and_look(cache, {next(cache, 0, 2), next(cache, 1, 1)}, window);
    }
  }
}

TEST_P(SlidingKind, AnAcceptedPartIsTakenBackToo) {
  Cache cache = make(GetParam(), 6, host_);
  feed(cache, exec_, {next(cache, 0, 20)});
  const auto was = kept(cache, 0, 0);
  const FedStep draft(cache, {next(cache, 0, 9)}, kHeads, kDim, true);
  cache.begin(draft.step());
  cache.kv(0).append(exec_, draft.k(), draft.v(), draft.step());
  cache.kv(1).append(exec_, draft.k(), draft.v(), draft.step());
  cache.accept(draft.step(), std::vector<int32_t>{4});
  cache.cancel(draft.step());
  EXPECT_EQ(kept(cache, 0, 0), was);
  feed_and_look(cache, {next(cache, 0, 5)}, 6);
}

TEST_P(SlidingKind, Case12_ResetForgetsEverything) {
  Cache cache = make(GetParam(), 6, tracking_);
  feed(cache, exec_, {next(cache, 0, 14)});
  cache.reset();
  EXPECT_EQ(live(), 0u);
  EXPECT_EQ(cache.layer(0).seq_len(0), 0);
  EXPECT_EQ(cache.batch(), 0);
  feed_and_look(cache, {next(cache, 0, 4), next(cache, 1, 9)}, 6);
  expect_kept(cache, 0, 4);
  expect_kept(cache, 1, kept_of(9, 6));
}

TEST_P(SlidingKind, Case13_ARowPastMaxCacheLenIsRefusedBeforeAnyWrite) {
  if (!fixed()) return;
  for (const int64_t window : {3, 8, 50}) {
    Cache cache = make(GetParam(), window, tracking_, 0, 8);
    const auto refuses = [&](const std::vector<Feed>& feeds, int need) {
      const std::string text = refusal(ErrorKind::kNoRoom, [&] { feed(cache, exec_, feeds); });
      EXPECT_NE(text.find(str("needs ", need, " tokens")), std::string::npos) << text;
      EXPECT_NE(text.find("max_cache_len is 8"), std::string::npos) << text;
    };
    refuses({{0, numbers(0, 9)}}, 9);
    EXPECT_EQ(live(), 0u);
    feed_and_look(cache, {next(cache, 0, 5)}, window);
    refuses({next(cache, 1, 2), next(cache, 0, 4)}, 9);
    EXPECT_EQ(cache.batch(), 1);
    feed_and_look(cache, {next(cache, 0, 3)}, window);
    expect_kept(cache, 0, std::min<int64_t>(8, window));
    refuses({next(cache, 0, 1)}, 9);
  }
}

// The promise: never more than the window, the step and the rollback margin.
TEST_P(SlidingKind, MemoryStaysWithinWindowStepAndRollback) {
  for (const int64_t window : {1, 2, 63, 64, 65, 100, 129, 200}) {
    for (const int64_t rollback : {0, 1, 9, 64}) {
      TrackingAllocator only(host_);
      Cache cache = CacheRegistry().make(GetParam(), std::vector<LayerSpec>{{kHeads, kDim, window}},
                                         {DType::kF32, 400, rollback, {}}, only);
      int64_t largest_step = 0;
      for (const int count : {1, 1, 62, 5, 1, 1, 130, 1, 1, 7, 1, 20, 1}) {
        feed(cache, exec_, {next(cache, 0, count)});
        largest_step = std::max<int64_t>(largest_step, count);
        EXPECT_LE(only.of("kv").live, static_cast<size_t>(window + rollback + count) * kTokenBytes)
            << "window " << window << " rollback " << rollback << " step " << count;
        EXPECT_LE(only.of("kv").peak,
                  static_cast<size_t>(window + rollback + largest_step) * kTokenBytes);
      }
    }
  }
}

TEST_P(SlidingKind, ASteadyStepTakesNoMemory) {
  Cache cache = make(GetParam(), 20, tracking_);
  feed(cache, exec_, {next(cache, 0, 90), next(cache, 1, 70)});
  feed(cache, exec_, {next(cache, 0, 1), next(cache, 1, 1)});
  const size_t calls = tracking_.of("kv").calls;
  for (int i = 0; i < 30; ++i) feed(cache, exec_, {next(cache, 0, 1), next(cache, 1, 1)});
  EXPECT_EQ(tracking_.of("kv").calls, calls);
}

TEST_P(SlidingKind, WhenMemoryRunsOutTheRowsAreAsTheyWere) {
  for (size_t fail_at = 0; fail_at < 60; ++fail_at) {
    FaultAllocator faults(tracking_);
    {
      Cache cache = make(GetParam(), 150, faults);
      feed(cache, exec_, {next(cache, 0, 60), next(cache, 1, 170)});
      Cache fork = cache.fork();
      const auto rows = [&] { return std::pair(kept(cache, 0, 0), kept(cache, 0, 1)); };
      const auto before = rows();
      faults.arm(fail_at);
      const std::vector<Feed> more = {next(cache, 0, 70), next(cache, 1, 3), next(cache, 2, 9)};
      bool failed = false;
      try {
        feed(cache, exec_, more);
      } catch (const OutOfMemory&) {
        failed = true;
      }
      faults.arm(SIZE_MAX);
      if (!failed) {
        EXPECT_GE(fail_at, 4u);
        return;
      }
      EXPECT_EQ(rows(), before);
      EXPECT_EQ(cache.batch(), 2);
      feed_and_look(cache, more, 150);
      EXPECT_EQ(kept(fork, 0, 0), before.first);
      EXPECT_EQ(kept(fork, 0, 1), before.second);
    }
    EXPECT_EQ(live(), 0u);
  }
  FAIL() << "the step never succeeded";
}

}  // namespace
}  // namespace larder::test
