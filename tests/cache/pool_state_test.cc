#include "larder/cache/pool_state.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/error_of.h"

namespace larder::test {
namespace {

using Kind = PoolEventKind;

class PoolStates : public ::testing::Test {
 protected:
  PoolStates() {
    pool_.apply({.kind = Kind::kPool, .count = 4});
    tell(Kind::kBegin, {}, 7);
    tell(Kind::kAllocate, {0, 1});
    tell(Kind::kOwn, {0, 1}, 7);
  }
  void tell(Kind kind, const std::vector<int32_t>& blocks, int64_t request = PoolEvent::kNobody) {
    pool_.apply({.kind = kind, .blocks = blocks, .request = request});
  }
  void expect_counts(int64_t free, int64_t used, int64_t cached) {
    const PoolState::Counts counts = pool_.counts();
    EXPECT_EQ(counts.free, free);
    EXPECT_EQ(counts.used, used);
    EXPECT_EQ(counts.cached, cached);
  }
  PoolState pool_;
};

TEST_F(PoolStates, ABlockThatOnlyThePrefixCacheHoldsIsCachedUntilItIsFoundOrEvicted) {
  expect_counts(2, 2, 0);
  tell(Kind::kCache, {0});
  EXPECT_EQ(pool_.blocks()[0].holders(), 2);
  tell(Kind::kEnd, {}, 7);
  tell(Kind::kFree, {1});
  expect_counts(3, 0, 1);
  tell(Kind::kBegin, {}, 8);
  tell(Kind::kHit, {0}, 8);
  expect_counts(3, 1, 0);
  tell(Kind::kPreempt, {}, 8);
  expect_counts(3, 0, 1);
  tell(Kind::kEvict, {0});
  tell(Kind::kFree, {0});
  expect_counts(4, 0, 0);
  EXPECT_TRUE(pool_.owners().at({8, 0}).empty());
  EXPECT_EQ(pool_.totals().hits, 1);
  EXPECT_EQ(pool_.totals().preemptions, 1);
  EXPECT_EQ(pool_.totals().evictions, 1);
}

TEST_F(PoolStates, WhatStandsAsideIsKnownUntilItComesBackOrTheRequestEnds) {
  const auto swap = [&](Kind kind, std::vector<int32_t> blocks) {
    pool_.apply({.kind = kind, .blocks = blocks, .count = 9, .request = 7});
  };
  EXPECT_NE(error_of([&] { swap(Kind::kSwapIn, {0}); }).find("does not stand aside"),
            std::string::npos);
  swap(Kind::kSwapOut, {0, 1});
  tell(Kind::kPreempt, {}, 7);
  EXPECT_EQ(pool_.aside().at({7, 0}), 9);
  EXPECT_EQ(pool_.blocks()[0].holders(), 0);
  swap(Kind::kSwapIn, {1});
  EXPECT_TRUE(pool_.aside().empty());
  EXPECT_EQ(pool_.owners().at({7, 0}).size(), 1u);
  // The file could not be read: the request goes on with blocks of its own.
  swap(Kind::kSwapOut, {1});
  tell(Kind::kPreempt, {}, 7);
  tell(Kind::kOwn, {1}, 7);
  EXPECT_TRUE(pool_.aside().empty());
  swap(Kind::kSwapOut, {1});
  tell(Kind::kPreempt, {}, 7);
  tell(Kind::kEnd, {}, 7);
  EXPECT_TRUE(pool_.aside().empty());
  EXPECT_EQ(pool_.totals().swapped_out, 3);
  EXPECT_EQ(pool_.totals().swapped_in, 1);
}

TEST_F(PoolStates, ABlockThatIsTakenAgainHasNoOwnersFromBefore) {
  tell(Kind::kFree, {0});
  EXPECT_EQ(pool_.owners().at({7, 0}).size(), 1u);
  tell(Kind::kAllocate, {0});
  EXPECT_EQ(pool_.blocks()[0].holders(), 0);
}

TEST_F(PoolStates, AnEventThatCannotFollowIsRefused) {
  EXPECT_EQ(error_of([&] { tell(Kind::kAllocate, {0}); }), "block 0 is taken twice");
  EXPECT_EQ(error_of([&] { tell(Kind::kOwn, {2}, 7); }), "block 2 is free");
  EXPECT_EQ(error_of([&] { tell(Kind::kOwn, {0}, 8); }),
            "request 8 sample 0 has not begun, or has ended");
  EXPECT_EQ(error_of([&] { tell(Kind::kBegin, {}, 7); }), "request 7 sample 0 begins twice");
  EXPECT_EQ(error_of([&] { tell(Kind::kFree, {4}); }), "block 4 of a pool of 4");
  EXPECT_NE(error_of([] { PoolState().apply({.kind = Kind::kStep}); }), "");
}

TEST(PoolEvents, HaveNamesThatAreFoundAgain) {
  for (const Kind kind : {Kind::kPool, Kind::kAllocate, Kind::kHit, Kind::kSwapOut, Kind::kStep})
    EXPECT_EQ(pool_event_from_name(pool_event_name(kind)), kind);
  EXPECT_EQ(pool_event_name(Kind::kStep), "step");
  EXPECT_FALSE(pool_event_from_name("dance"));
}

}  // namespace
}  // namespace larder::test
