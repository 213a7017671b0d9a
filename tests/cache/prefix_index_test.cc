#include "larder/cache/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/allocation_counter.h"

namespace larder {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int32_t kNone = PrefixIndex::kNone;

uint64_t constant(uint64_t, std::span<const int32_t>) { return 7; }

std::vector<int32_t> by_age(const PrefixIndex& index) {
  std::vector<int32_t> entries;
  for (int32_t e = index.next(kNone); e != kNone; e = index.next(e)) entries.push_back(e);
  return entries;
}

TEST(PrefixIndex, FindsABlockBehindItsParentAlone) {
  PrefixIndex index(8, 2);
  const int32_t root = index.root("");
  const int32_t a = index.add(root, Tokens{1, 2}), b = index.add(a, Tokens{3, 4});
  EXPECT_EQ(index.find(root, Tokens{1, 2}), a);
  EXPECT_EQ(index.find(a, Tokens{3, 4}), b);
  EXPECT_EQ(index.find(root, Tokens{3, 4}), kNone);
  EXPECT_EQ(index.find(b, Tokens{1, 2}), kNone);
  EXPECT_EQ(index.add(a, Tokens{3, 4}), b);
  EXPECT_EQ(index.size(), 2);
}

// Case 30: a hash that collides always, as in another runtime whose hits were trusted.
TEST(PrefixIndex, Case30_EqualHashesAreTwoBlocksUnlessParentAndTokensAreEqual) {
  PrefixIndex index(8, 4, constant);
  const int32_t root = index.root("");
  const int32_t first = index.add(root, Tokens{1, 2, 3, 4});
  const int32_t second = index.add(first, Tokens{5, 6, 7, 8});
  EXPECT_EQ(index.find(root, Tokens{9, 2, 3, 4}), kNone);
  EXPECT_EQ(index.find(root, Tokens{5, 6, 7, 8}), kNone);
  const int32_t alone = index.add(root, Tokens{5, 6, 7, 8});
  EXPECT_NE(alone, second);
  index.remove(alone);
  EXPECT_EQ(index.find(first, Tokens{5, 6, 7, 8}), second);
}

TEST(PrefixIndex, TenantsWithDifferentSaltsShareNothing) {
  PrefixIndex index(8, 2);
  const int32_t a = index.add(index.root("a"), Tokens{1, 2});
  EXPECT_EQ(index.find(index.root("b"), Tokens{1, 2}), kNone);
  EXPECT_NE(index.add(index.root("b"), Tokens{1, 2}), a);
  EXPECT_EQ(index.find(index.root("a"), Tokens{1, 2}), a);
}

TEST(PrefixIndex, ASaltIsForgottenWithItsLastEntryAndUser) {
  PrefixIndex index(8, 2);
  EXPECT_EQ(index.find_root("a"), kNone);
  const int32_t a = index.root("a");
  index.pin(a);
  const int32_t entry = index.add(a, Tokens{1, 2});
  index.unpin(a);
  EXPECT_EQ(index.find_root("a"), a) << "an entry is left";
  index.pin(a);
  index.remove(entry);
  EXPECT_EQ(index.find_root("a"), a) << "somebody begins there";
  index.unpin(a);
  EXPECT_EQ(index.find_root("a"), kNone);
  for (int i = 0; i < 100; ++i) {
    const int32_t root = index.root(std::to_string(i));
    EXPECT_EQ(root, a) << "its place is free";
    index.pin(root);
    index.unpin(root);
  }
  EXPECT_EQ(index.num_salts(), 0);
}

TEST(PrefixIndex, TheOldestEntryNeverHasChildren) {
  PrefixIndex index(64, 1);
  std::mt19937 random(3);
  std::vector<int32_t> known{index.root("")};
  for (int i = 0; i < 500; ++i) {
    const int32_t parent = known[random() % known.size()];
    const int32_t entry = index.add(parent, Tokens{static_cast<int32_t>(random() % 4)});
    if (entry != kNone && std::ranges::find(known, entry) == known.end()) known.push_back(entry);
    if (index.size() == index.capacity()) {
      const int32_t oldest = index.next(kNone);
      ASSERT_TRUE(index.removable(oldest));
      index.remove(oldest);
      std::erase(known, oldest);
    }
    ASSERT_EQ(by_age(index).size(), static_cast<size_t>(index.size()));
    ASSERT_EQ(known.size(), static_cast<size_t>(index.size()) + 1);
  }
}

TEST(PrefixIndex, UseMakesAChainTheYoungest) {
  PrefixIndex index(8, 1);
  const int32_t root = index.root("");
  const int32_t a = index.add(root, Tokens{1}), b = index.add(a, Tokens{2});
  const int32_t c = index.add(root, Tokens{3});
  EXPECT_EQ(by_age(index), (std::vector{b, a, c}));
  index.use(b);
  EXPECT_EQ(by_age(index), (std::vector{c, b, a}));
}

TEST(PrefixIndex, APinnedEntryStays) {
  PrefixIndex index(2, 1);
  const int32_t a = index.add(index.root(""), Tokens{1});
  index.pin(a);
  EXPECT_FALSE(index.removable(a));
  index.unpin(a);
  EXPECT_TRUE(index.removable(a));
}

TEST(PrefixIndex, AFullIndexTakesNoMoreAndAllocatesNothing) {
  PrefixIndex index(3, 2);
  const int32_t root = index.root("");
  const Tokens blocks[] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  const size_t before = allocations_so_far();
  int32_t last = root;
  for (int i = 0; i < 3; ++i) last = index.add(last, blocks[i]);
  EXPECT_EQ(index.add(last, blocks[3]), kNone);
  index.remove(last);
  EXPECT_NE(index.add(root, blocks[3]), kNone);
  EXPECT_EQ(allocations_so_far(), before);
}

}  // namespace
}  // namespace larder
