// Rows saved, loaded and assigned, over all registered kinds.
#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/cache/image.h"
#include "larder/cache/registry.h"
#include "tests/support/cache_contents.h"
#include "tests/support/machine.h"

namespace larder::test {
namespace {

class EveryKindsRows : public ::testing::TestWithParam<std::string> {
 protected:
  Cache make(Allocator& allocator, DType dtype = DType::kBF16, int64_t capacity = 200) const {
    return CacheRegistry().make(GetParam(), std::vector<LayerSpec>(2, LayerSpec{2, 64, 0}),
                                {dtype, capacity}, allocator);
  }
  Cache fed(Allocator& allocator) {
    Cache cache = make(allocator);
    feed_random(cache, machine_.exec, {{0, 70}, {1, 3}, {2, 130}});
    feed_random(cache, machine_.exec, {{0, 1}, {2, 9}});
    return cache;
  }
  std::vector<RowImage> saved(const CacheLayer& layer) {
    std::vector<RowImage> images;
    for (int32_t row = 0; row < layer.batch(); ++row) images.push_back(layer.save(row, host_));
    return images;
  }
  static std::vector<RowImageView> views(const std::vector<RowImage>& images) {
    std::vector<RowImageView> result;
    for (const RowImage& image : images) result.push_back(view_of(image));
    return result;
  }
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
};
INSTANTIATE_TEST_SUITE_P(Registry, EveryKindsRows, ::testing::ValuesIn(CacheRegistry().names()));

TEST_P(EveryKindsRows, Case38_SavedRowsLoadBitForBitAndGoOnAlike) {
  Cache cache = fed(host_), loaded = make(host_);
  feed_random(loaded, machine_.exec, {{0, 40}}, 77);
  for (int32_t i = 0; i < cache.num_layers(); ++i) {
    EXPECT_EQ(cache.layer(i).format(), loaded.layer(i).format());
    const auto images = saved(cache.layer(i));
    loaded.layer(i).load(views(images))->apply();
  }
  ASSERT_EQ(loaded.batch(), 3);
  for (int round = 0; round < 2; ++round) {
    for (int32_t row = 0; row < 3; ++row) {
      EXPECT_EQ(loaded.seq_len(row), cache.seq_len(row));
      EXPECT_TRUE(contents(loaded, row) == contents(cache, row)) << "row " << row;
    }
    for (Cache* both : {&cache, &loaded})
      feed_random(*both, machine_.exec, {{0, 1}, {1, 60}, {2, 1}});
  }
}

TEST_P(EveryKindsRows, Case38_AnImageThatDoesNotFitIsRefusedAndNothingChanges) {
  Cache cache = fed(host_), other = make(tracking_);
  feed_random(other, machine_.exec, {{0, 40}}, 77);
  const auto before = contents(other, 0);
  const size_t live = tracking_.total().live;
  const auto images = saved(cache.layer(0));
  const auto refuses = [&](auto bend, const char* what) {
    auto rows = views(images);
    bend(rows);
    EXPECT_THROW(other.layer(0).load(rows), Error) << what;
  };
  refuses([](auto& rows) { rows[1].tensors[0].name = "other"; }, "a name");
  refuses([](auto& rows) { rows[1].tensors.pop_back(); }, "a tensor too few");
  refuses([](auto& rows) { rows[1].tensors.push_back(rows[1].tensors[0]); }, "a tensor twice");
  refuses([](auto& rows) { rows[1].seq_len = -1; }, "a negative length");
  refuses([](auto& rows) { rows[2].seq_len = INT64_MAX; }, "a length past all");
  refuses([](auto& rows) { rows[2].tensors[0].tensor.dtype = DType::kF64; }, "a dtype");
  refuses([](auto& rows) { rows[0].tensors[0].tensor.shape = Shape{2, 7, 5}; }, "a shape");
  EXPECT_EQ(other.batch(), 1);
  EXPECT_TRUE(contents(other, 0) == before);
  EXPECT_EQ(tracking_.total().live, live);
}

TEST_P(EveryKindsRows, AssignedRowsAreReadBack) {
  Cache cache = CacheRegistry().make("dynamic_full", std::vector<LayerSpec>{{2, 64, 0}},
                                     {DType::kBF16}, host_);
  feed_random(cache, machine_.exec, {{0, 70}, {1, 3}});
  Cache other = make(host_);
  std::vector<Tensor> tensors;
  std::vector<RowTokens> rows;
  for (int32_t row = 0; row < 2; ++row) {
    const Shape shape{2, cache.seq_len(row), 64};
    tensors.emplace_back(host_, shape, DType::kBF16, "test");
    tensors.emplace_back(host_, shape, DType::kBF16, "test");
    const size_t n = tensors.size();
    cache.kv(0).read(row, tensors[n - 2], tensors[n - 1]);
    rows.push_back({0, tensors[n - 2], tensors[n - 1]});
  }
  const std::unique_ptr<Change> change = other.kv(0).assign(rows);
  EXPECT_EQ(other.batch(), 0);
  change->apply();
  EXPECT_EQ(other.kv(0).seq_len(0), 70);
  EXPECT_EQ(other.kv(0).seq_len(1), 3);
}

TEST_P(EveryKindsRows, MemoryThatRunsOutWhileRowsAreLoadedChangesNothing) {
  if (CacheRegistry().find(GetParam()).has_own_pool) GTEST_SKIP() << "has all its memory";
  Cache cache = fed(host_);
  const auto images = saved(cache.layer(0));
  for (size_t fail_at = 0;; ++fail_at) {
    FaultAllocator faults(tracking_);
    Cache other = make(faults);
    feed_random(other, machine_.exec, {{0, 40}}, 77);
    const auto before = contents(other, 0);
    const size_t live = tracking_.total().live;
    faults.arm(fail_at);
    try {
      other.layer(0).load(views(images))->apply();
      EXPECT_GT(fail_at, 2u) << "three rows take at least a block each";
      return;
    } catch (const OutOfMemory&) {
      EXPECT_TRUE(contents(other, 0) == before);
      EXPECT_EQ(tracking_.total().live, live);
    }
  }
}

}  // namespace
}  // namespace larder::test
