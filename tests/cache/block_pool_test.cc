#include "larder/cache/block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace larder {
namespace {

TEST(BlockPool, HandsOutEveryIdOnceAndThenNone) {
  BlockPool pool(5);
  std::set<int32_t> ids;
  for (int i = 0; i < 5; ++i) ids.insert(pool.take());
  EXPECT_EQ(ids, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.take(), BlockPool::kNone);
}

TEST(BlockPool, TheOneGivenBackLastGoesFirst) {
  BlockPool pool(4);
  for (int i = 0; i < 4; ++i) pool.take();
  pool.give(2);
  pool.give(0);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.take(), 2);
}

TEST(BlockPool, AfterTenThousandRandomEventsTheCountsAreRight) {
  BlockPool pool(37);
  std::mt19937 random(1);
  std::vector<int32_t> held;
  for (int i = 0; i < 10000; ++i) {
    if (random() % 2 == 0) {
      const int32_t id = pool.take();
      ASSERT_EQ(id == BlockPool::kNone, held.size() == 37u);
      if (id != BlockPool::kNone) held.push_back(id);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.give(held.back());
      held.pop_back();
    }
    ASSERT_EQ(pool.num_free(), 37 - static_cast<int32_t>(held.size()));
    for (const int32_t id : held) ASSERT_TRUE(pool.taken(id));
  }
}

TEST(BlockPool, GivingABlockBackTwiceIsAMistake) {
  BlockPool pool(2);
  const int32_t id = pool.take();
  pool.give(id);
  EXPECT_DEATH(pool.give(id), "taken");
}

}  // namespace
}  // namespace larder
