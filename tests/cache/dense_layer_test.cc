// What is special about the dynamic and the static kind: blocks, sharing, capacity.
#include "larder/cache/dense_layer.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "tests/support/kv_steps.h"

namespace larder::test {
namespace {

constexpr size_t kTokenBytes = 2 * 2 * 4 * sizeof(float);  // K and V, 2 heads, head_dim 4

class DenseLayers : public ::testing::Test {
 protected:
  Cache make(const std::string& kind, int64_t capacity = 0) {
    return CacheRegistry().make(kind, std::vector<LayerSpec>{{2, 4, 0}, {2, 4, 0}},
                                {DType::kF32, capacity}, tracking_);
  }
  size_t live() const { return tracking_.of("kv").live; }
  size_t calls() const { return tracking_.of("kv").calls; }

  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
};
using DynamicCache = DenseLayers;
using StaticCache = DenseLayers;

TEST_F(DynamicCache, GrowsByBlocksOf64TokensToTheByte) {
  Cache cache = make("dynamic");
  for (const auto& [tokens, blocks] :
       {std::pair{1, 1}, {62, 1}, {1, 1}, {1, 2}, {127, 3}, {1, 4}}) {
    feed(cache, machine_.exec, {{0, numbers(0, tokens)}});
    EXPECT_EQ(live(), 2 * static_cast<size_t>(blocks) * 64 * kTokenBytes)
        << "at length " << cache.seq_len(0);
  }
}

TEST_F(DynamicCache, GrowthAndReorderCopyNoFullBlock) {
  Cache cache = make("dynamic");
  feed(cache, machine_.exec, {{0, numbers(0, 640)}, {1, numbers(1000, 640)}});
  const size_t before = live();
  cache.select_rows(std::vector<int32_t>{0, 0});
  EXPECT_EQ(live(), before / 2) << "both rows are the same ten blocks";
  feed(cache, machine_.exec, {{0, {1}}, {1, {2}}});
  EXPECT_EQ(live(), before / 2 + 2 * 2 * 64 * kTokenBytes) << "one new block a row and layer";
}

TEST_F(DynamicCache, OnlyTheLastBlockIsCopiedWhenRowsPart) {
  Cache cache = make("dynamic");
  feed(cache, machine_.exec, {{0, numbers(0, 130)}});
  cache.select_rows(std::vector<int32_t>{0, 0});
  const size_t before = live();
  feed(cache, machine_.exec, {{0, {7}}, {1, {8}}});
  EXPECT_EQ(live(), before + 2 * 64 * kTokenBytes);
  EXPECT_EQ(kept(cache, 0, 0).back(), 7);
  EXPECT_EQ(kept(cache, 0, 1).back(), 8);
}

TEST_F(DynamicCache, CropGivesBlocksBack) {
  Cache cache = make("dynamic");
  feed(cache, machine_.exec, {{0, numbers(0, 200)}});
  cache.crop(std::vector<int64_t>{64});
  EXPECT_EQ(live(), 2 * 64 * kTokenBytes);
}

TEST_F(StaticCache, TakesItsWholeMemoryAtTheFirstStep) {
  Cache cache = make("static", 33);
  EXPECT_EQ(live(), 0u);
  feed(cache, machine_.exec, {{0, {1}}, {1, {2}}});
  EXPECT_EQ(live(), 2 * 2 * 33 * kTokenBytes);
  feed(cache, machine_.exec, {{0, numbers(2, 32)}});
  EXPECT_EQ(live(), 2 * 2 * 33 * kTokenBytes);
  EXPECT_EQ(calls(), 4u);
}

TEST_F(StaticCache, ReorderingAllocatesNothing) {
  Cache cache = make("static", 20);
  feed(cache, machine_.exec, {{0, numbers(0, 5)}, {1, numbers(10, 6)}, {2, numbers(20, 7)}});
  const size_t before = calls();
  for (const std::vector<int32_t>& beams :
       {std::vector<int32_t>{0, 1, 2}, {2, 0, 1}, {1, 1, 0}, {2, 2, 2}}) {
    cache.select_rows(beams);
    feed(cache, machine_.exec, {{0, {1}}, {1, {2}}, {2, {3}}});
    EXPECT_EQ(kept(cache, 1, 0).back(), 1);
    EXPECT_EQ(kept(cache, 1, 1).back(), 2);
    EXPECT_EQ(kept(cache, 1, 2).back(), 3);
  }
  EXPECT_EQ(calls(), before);
}

TEST_F(StaticCache, Case13_AFullCacheRefusesBeforeAnyWriteAndNamesBothNumbers) {
  Cache cache = make("static", 8);
  const auto refuses = [&](const std::vector<Feed>& feeds, const std::string& need) {
    try {
      feed(cache, machine_.exec, feeds);
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNoRoom);
      const std::string text = error.what();
      EXPECT_NE(text.find("needs " + need + " tokens"), std::string::npos) << text;
      EXPECT_NE(text.find("max_cache_len is 8"), std::string::npos) << text;
    }
  };
  refuses({{0, numbers(0, 9)}}, "9");
  EXPECT_EQ(live(), 0u);
  feed(cache, machine_.exec, {{0, numbers(0, 5)}});
  refuses({{1, numbers(0, 2)}, {0, numbers(5, 4)}}, "9");
  EXPECT_EQ(cache.batch(), 1);
  EXPECT_EQ(kept(cache, 0, 0), numbers(0, 5));
  feed(cache, machine_.exec, {{0, numbers(5, 3)}});
  EXPECT_EQ(kept(cache, 1, 0), numbers(0, 8));
  refuses({{0, {8}}}, "9");
}

TEST_F(DenseLayers, Case25_SizesPast64BitsAreRefusedBeforeAllocation) {
  const std::vector<LayerSpec> huge{{INT32_MAX, INT32_MAX, 0}};
  EXPECT_THROW(CacheRegistry().make("static", huge, {DType::kF32, INT32_MAX}, tracking_), Error);
  EXPECT_EQ(calls(), 0u);
}

TEST_F(DenseLayers, Case25_TheViewsOffsetsAre64Bit) {
  // 131,072 tokens x 8 heads x 128 channels x f32: the last V lies past 2^31 bytes from the first
  // K. Nothing is touched but the pages that are written.
  HostAllocator host;
  Cache cache = CacheRegistry().make("static", std::vector<LayerSpec>{{8, 1024, 0}},
                                     {DType::kF16, 131072}, host);
  const FedStep one(cache, {{0, {1}}}, 8, 1024);
  cache.begin(one.step());
  const KVView view = cache.kv(0).append(machine_.exec, one.k(), one.v(), one.step());
  const KVSegment& segment = view.segment[0];
  EXPECT_EQ(segment.v.head_stride, int64_t{131072} * 1024 * 2);
  EXPECT_EQ(static_cast<int64_t>(segment.v.data), int64_t{131072} * 1024 * 2 * 8);
  const auto address =
      segment.v.data + static_cast<uintptr_t>(segment.block_table[0] + 7 * segment.v.head_stride);
  EXPECT_EQ(f16_to_f32(*reinterpret_cast<const uint16_t*>(address)), 1.5f);
}

}  // namespace
}  // namespace larder::test
