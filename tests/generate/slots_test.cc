#include "larder/generate/slots.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "larder/cache/registry.h"
#include "tests/support/paged_engine.h"

namespace larder::test {
namespace {

// Two layers; rows are written by steps that nobody attends to.
class SlotsOfACache : public ::testing::Test {
 protected:
  SlotsOfACache()
      : cache_(CacheRegistry().make("paged", std::vector<LayerSpec>(2, LayerSpec{1, 4}),
                                    {DType::kF32, 0, 0, pool_config(4, 8)}, host_)),
        view_(view_of_pool(cache_)),
        slots_(cache_) {}
  void feed(int32_t slot, int32_t tokens) {
    const std::vector<int32_t> q_start{0, tokens};
    std::vector<int64_t> position;
    for (int32_t i = 0; i < tokens; ++i) position.push_back(cache_.seq_len(slot) + i);
    const Step step{1, tokens, q_start.data(), position.data(), &slot, false};
    cache_.begin(step);
    for (int32_t i = 0; i < cache_.num_layers(); ++i) cache_.layer(i).commit(step);
  }

  HostAllocator host_;
  Cache cache_;
  std::unique_ptr<PoolView> view_;
  Slots slots_;
};

TEST_F(SlotsOfACache, TheFirstFreeRowIsTakenAndANewOneOnlyWhenThereIsNone) {
  for (int32_t slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(slots_.take(), slot);
    feed(slot, 3);
  }
  slots_.give_back(1);
  EXPECT_EQ(cache_.seq_len(1), 0);
  EXPECT_EQ(cache_.seq_len(2), 3);
  EXPECT_EQ(slots_.take(), 1);
  EXPECT_EQ(slots_.take(), 3);
}

TEST_F(SlotsOfACache, ARowThatIsGivenBackGivesItsBlocksBack) {
  feed(slots_.take(), 9);
  feed(slots_.take(), 2);
  EXPECT_EQ(view_->num_free(), 16 - 6 - 2);
  slots_.give_back(0);
  slots_.give_back(1);
  EXPECT_EQ(view_->num_free(), 16);
}

TEST_F(SlotsOfACache, Case31_CopiesShareBlocksUntilTheyWriteAndAreFreedInAnyOrder) {
  std::vector<int32_t> order{0, 1, 2, 3};
  do {
    for (int i = 0; i < 3; ++i) feed(slots_.take(), 6);
    slots_.give_back(1);
    slots_.give_back(2);
    EXPECT_EQ(slots_.copies_of(0, 3), (std::vector<int32_t>{1, 2, 3}));
    EXPECT_EQ(view_->num_free(), 16 - 4);
    for (int32_t slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(cache_.seq_len(slot), 6);
      feed(slot, 1);
    }
    EXPECT_EQ(view_->num_free(), 16 - 2 - 4 * 2) << "the full block is one for all";
    for (const int32_t slot : order) slots_.give_back(slot);
    EXPECT_EQ(view_->num_free(), 16);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace larder::test
