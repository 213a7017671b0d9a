#include "larder/cache/swap_space.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "tests/support/cache_contents.h"
#include "tests/support/error_of.h"
#include "tests/support/machine.h"
#include "tests/support/test_block_file.h"

namespace larder::test {
namespace {

class Swapping : public ::testing::Test {
 protected:
  Swapping()
      : cache_(CacheRegistry().make("paged", std::vector<LayerSpec>{{2, 8, 0}, {2, 8, 6}},
                                    {DType::kF32, 0, 0, R"({"block_size":4,"num_blocks":12})"},
                                    host_)),
        swap_(cache_, std::make_unique<TestBlockFile>(faults_)) {}
  int32_t free() const { return cache_.layer(0).block_source()->as_paged()->pool(0).num_free(); }
  void empty(int32_t row) {
    std::vector<int64_t> len;
    for (int32_t r = 0; r < cache_.batch(); ++r) len.push_back(r == row ? 0 : cache_.seq_len(r));
    cache_.crop(len);
  }

  HostAllocator host_;
  Machine machine_;
  TestBlockFile::Faults faults_;
  Cache cache_;
  SwapSpace swap_;
};

TEST_F(Swapping, ARowComesBackBitForBitInAnotherPlaceAndGoesOn) {
  const int32_t all = free();
  for (const int64_t len : {1, 4, 7, 8, 19}) {
    feed_random(cache_, machine_.exec, {{0, len}});
    feed_random(cache_, machine_.exec, {{0, 1}});
    const auto before = contents(cache_, 0);
    SwapSpace::Row aside = swap_.put(0);
    EXPECT_TRUE(contents(cache_, 0) == before);
    empty(0);
    EXPECT_EQ(free(), all);
    feed_random(cache_, machine_.exec, {{2, 9}});
    swap_.get(1, aside);
    swap_.drop(aside);
    EXPECT_EQ(swap_.places_used(), 0);
    EXPECT_TRUE(contents(cache_, 1) == before) << len;
    feed_random(cache_, machine_.exec, {{1, 3}});
    EXPECT_EQ(cache_.seq_len(1), len + 4);
    cache_.reset();
    EXPECT_EQ(free(), all);
  }
}

TEST_F(Swapping, AFullPoolOrABadFileChangesNothing) {
  feed_random(cache_, machine_.exec, {{0, 20}});
  const auto before = contents(cache_, 0);
  for (const auto& fault : {&faults_.fail_write, &faults_.fail_allocate}) {
    *fault = 2;
    EXPECT_NE(error_of([&] { swap_.put(0); }), "");
    EXPECT_EQ(swap_.places_used(), 0);
    EXPECT_TRUE(contents(cache_, 0) == before);
    *fault = TestBlockFile::Faults::kNever;
  }
  SwapSpace::Row aside = swap_.put(0);
  empty(0);
  feed_random(cache_, machine_.exec, {{1, 40}});
  const int32_t left = free();
  EXPECT_NE(error_of([&] { swap_.get(0, aside); }).find("pool is full"), std::string::npos);
  EXPECT_EQ(free(), left);
  EXPECT_EQ(cache_.seq_len(0), 0);
  empty(1);
  faults_.fail_read = 3;
  EXPECT_NE(error_of([&] { swap_.get(0, aside); }).find("cannot read"), std::string::npos);
  EXPECT_EQ(cache_.seq_len(0), 0);
  swap_.get(0, aside);
  EXPECT_TRUE(contents(cache_, 0) == before);
}

TEST_F(Swapping, ARowOfAKindWithoutAPoolIsRefused) {
  Cache dynamic =
      CacheRegistry().make("dynamic", std::vector<LayerSpec>{{2, 8, 0}}, {DType::kF32}, host_);
  EXPECT_NE(error_of([&] {
              SwapSpace(dynamic, std::make_unique<TestBlockFile>(faults_));
            }).find("no swapping: "),
            std::string::npos);
}

}  // namespace
}  // namespace larder::test
