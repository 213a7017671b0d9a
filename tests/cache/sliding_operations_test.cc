// Sliding layers under random sequences of operations.
#include <gtest/gtest.h>

#include <random>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "tests/support/kv_steps.h"

namespace larder::test {
namespace {

constexpr int32_t kHeads = 2, kDim = 4;

// Layer 0 slides, layer 1 is full.
Cache make(const std::string& kind, int64_t window, Allocator& host, int64_t rollback,
           int64_t capacity) {
  return CacheRegistry().make(kind,
                              std::vector<LayerSpec>{{kHeads, kDim, window}, {kHeads, kDim, 0}},
                              {DType::kF32, capacity, rollback, {}}, host);
}

class SlidingOperations : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SlidingOperations, ::testing::Values("dynamic", "static"));

// Any sequence of operations against plain lists of tokens.
TEST_P(SlidingOperations, InAnyOrderKeepWhatTheListsKeep) {
  HostAllocator host;
  const Machine machine;
  std::mt19937 random(7);
  const auto upto = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n)(random); };
  for (int run = 0; run < 60; ++run) {
    const int64_t window = 1 + upto(run % 3 == 0 ? 150 : 8), rollback = upto(4);
    Cache cache = make(GetParam(), window, host, rollback, 5000);
    std::vector<std::vector<float>> rows;
    std::vector<Cache> forks;
    float fresh = 0;
    for (int op = 0; op < 40; ++op) {
      const int64_t what = upto(9);
      if (what == 0 && !rows.empty()) {
        std::vector<int32_t> source;
        for (int64_t i = 0; i <= upto(3); ++i)
          source.push_back(static_cast<int32_t>(upto(static_cast<int64_t>(rows.size()) - 1)));
        cache.select_rows(source);
        std::vector<std::vector<float>> chosen;
        for (const int32_t row : source) chosen.push_back(rows[static_cast<size_t>(row)]);
        rows = chosen;
      } else if (what == 1 && !rows.empty()) {
        std::vector<int64_t> len;
        bool possible = true;
        for (int32_t r = 0; r < cache.batch(); ++r) {
          const int64_t seen = cache.seq_len(r);
          len.push_back(std::max<int64_t>(0, seen - upto(rollback)));
          const int64_t needed = std::max<int64_t>(0, len.back() - window + 1);
          possible &= len.back() == seen || needed == len.back() ||
                      needed >= seen - cache.kv(0).kept_len(r);
        }
        if (!possible) {
          EXPECT_THROW(cache.crop(len), Error);
        } else {
          cache.crop(len);
          for (size_t r = 0; r < rows.size(); ++r) rows[r].resize(static_cast<size_t>(len[r]));
        }
      } else if (what == 2) {
        forks.push_back(std::move(cache));
        cache = forks.back().fork();
      } else {
        const auto batch = static_cast<int64_t>(rows.size());
        const bool tentative = what == 3, cancelled = what == 4;
        std::vector<Feed> feeds;
        for (int32_t r = 0; r < std::max<int64_t>(batch, 2); ++r) {
          if (r < batch && upto(2) == 0) continue;
          feeds.push_back({r, numbers(fresh, static_cast<int>(upto(upto(9) == 0 ? 200 : 6)))});
          fresh += 200;
        }
        const FedStep fed(cache, feeds, kHeads, kDim, tentative);
        feed(cache, machine.exec, feeds, tentative);
        if (cancelled) {
          cache.cancel(fed.step());
          ASSERT_EQ(cache.batch(), batch);
          continue;
        }
        std::vector<int32_t> count;
        for (const Feed& one : feeds) {
          const auto n = static_cast<int64_t>(one.tokens.size());
          count.push_back(static_cast<int32_t>(tentative ? upto(n) : n));
        }
        if (tentative) cache.accept(fed.step(), count);
        rows.resize(static_cast<size_t>(cache.batch()));
        for (size_t i = 0; i < feeds.size(); ++i) {
          auto& row = rows[static_cast<size_t>(feeds[i].slot)];
          row.insert(row.end(), feeds[i].tokens.begin(), feeds[i].tokens.begin() + count[i]);
        }
      }
      for (int32_t r = 0; r < cache.batch(); ++r) {
        const auto& row = rows[static_cast<size_t>(r)];
        const auto held = kept(cache, 0, r);
        ASSERT_EQ(cache.layer(0).seq_len(r), static_cast<int64_t>(row.size()));
        ASSERT_GE(static_cast<int64_t>(held.size()),
                  std::min(static_cast<int64_t>(row.size()), window - 1));
        ASSERT_TRUE(std::equal(held.rbegin(), held.rend(), row.rbegin())) << "run " << run;
        ASSERT_EQ(kept(cache, 1, r), row);
      }
    }
  }
}

}  // namespace
}  // namespace larder::test
