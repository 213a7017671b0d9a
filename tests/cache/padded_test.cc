// The ecosystem's edge: columns, left padding, crop with any integer.
#include "larder/cache/padded.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "tests/support/machine.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

class PaddedCaches : public ::testing::TestWithParam<std::string> {
 protected:
  Cache make(int layers = 1) {
    const std::vector<LayerSpec> specs(static_cast<size_t>(layers), LayerSpec{2, 4, 0});
    return CacheRegistry().make(GetParam(), specs, {DType::kF32, 16}, machine_.host);
  }
  // [batch, 2, n, 4], every number of row r and column c being 100 * r + c; V is half more.
  Tensor tokens(int64_t batch, int64_t first, int64_t n, float more = 0) {
    Tensor t(machine_.host, {batch, 2, n, 4}, DType::kF32, "test");
    for (int64_t i = 0; i < t.view().count(); ++i) {
      t.as<float>()[i] = static_cast<float>(100 * (i / (8 * n)) + first + i / 4 % n) + more;
    }
    return t;
  }
  KeyValues feed(PaddedCache& cache, int64_t batch, int64_t n, int32_t layer = 0) {
    const int64_t first = cache.get_seq_length(layer);
    return cache.update(layer, tokens(batch, first, n), tokens(batch, first, n, 0.5f));
  }
  // Column values of a row, head 1.
  std::vector<float> columns(const PaddedCache& cache, int64_t row) {
    const auto held = cache.keys_values(0);
    std::vector<float> result;
    if (!held) return result;
    for (int64_t c = 0; c < cache.get_seq_length(); ++c) {
      const float* at =
          held->keys.as<float>() + ((row * 2 + 1) * held->keys.view().shape[2] + c) * 4;
      result.push_back(at[3]);
    }
    return result;
  }
  using Floats = std::vector<float>;
  Machine machine_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, PaddedCaches, ::testing::Values("dynamic", "static"));

TEST_P(PaddedCaches, Case03_CropTakesTheWholeIntegerRange) {
  for (const auto& [argument, kept] : {std::pair<int64_t, int64_t>{3, 3},
                                       {5, 5},
                                       {10, 5},
                                       {-2, 3},
                                       {-5, 0},
                                       {0, 0},
                                       {-6, 0},
                                       {INT64_MIN, 0},
                                       {INT64_MAX, 5}}) {
    Cache inner = make();
    PaddedCache cache(inner, machine_.exec, machine_.host);
    cache.crop(argument);  // never written: nothing to do
    EXPECT_EQ(cache.get_seq_length(), 0);
    feed(cache, 2, 5);
    cache.crop(argument);
    EXPECT_EQ(cache.get_seq_length(), kept) << argument;
    EXPECT_EQ(columns(cache, 1).size(), static_cast<size_t>(kept));
    feed(cache, 2, 1);
    EXPECT_EQ(columns(cache, 1).back(), static_cast<float>(100 + kept));
  }
}

TEST_P(PaddedCaches, Case03_AfterACropPositionsCountTheRealTokensThatAreLeft) {
  Cache inner = make();
  PaddedCache cache(inner, machine_.exec, machine_.host, {0, 2});
  feed(cache, 2, 5);
  cache.crop(3);
  EXPECT_EQ(cache.next_position(0), 3);
  EXPECT_EQ(cache.next_position(1), 1);
  feed(cache, 2, 1);
  EXPECT_EQ(columns(cache, 0), (Floats{0, 1, 2, 3}));
  EXPECT_EQ(columns(cache, 1), (Floats{0, 0, 102, 103}));
  EXPECT_EQ(inner.seq_len(1), 2);
}

TEST_P(PaddedCaches, Case03_ALayerThatWasNeverWrittenDoesNotMind) {
  Cache inner = make(2);
  PaddedCache cache(inner, machine_.exec, machine_.host);
  feed(cache, 2, 5, 0);
  cache.crop(2);
  cache.reorder_cache(std::vector<int32_t>{1, 0});
  EXPECT_EQ(cache.get_seq_length(0), 2);
  EXPECT_EQ(cache.get_seq_length(1), 0);
  EXPECT_EQ(columns(cache, 0), (Floats{100, 101}));
}

TEST_P(PaddedCaches, WhatLiesInPaddingColumnsIsNotKept) {
  Cache inner = make();
  PaddedCache cache(inner, machine_.exec, machine_.host, {4, 0, 9});
  const KeyValues got = feed(cache, 3, 7);
  EXPECT_EQ(columns(cache, 0), (Floats{0, 0, 0, 0, 4, 5, 6}));
  EXPECT_EQ(columns(cache, 1), (Floats{100, 101, 102, 103, 104, 105, 106}));
  EXPECT_EQ(columns(cache, 2), Floats(7, 0));
  EXPECT_EQ(inner.seq_len(0), 3);
  EXPECT_EQ(got.values.as<float>()[4 * 4], 4.5f);
  feed(cache, 3, 4);
  EXPECT_EQ(columns(cache, 2), (Floats{0, 0, 0, 0, 0, 0, 0, 0, 0, 209, 210}));
}

TEST_P(PaddedCaches, Case05_RowsMoveWithTheirPadding) {
  Cache inner = make();
  PaddedCache cache(inner, machine_.exec, machine_.host, {0, 1, 2, 3});
  feed(cache, 4, 4);
  cache.reorder_cache(std::vector<int32_t>{3, 3, 0, 1});
  EXPECT_EQ(columns(cache, 0), (Floats{0, 0, 0, 303}));
  EXPECT_EQ(columns(cache, 3), (Floats{0, 101, 102, 103}));
  cache.batch_select_indices(std::vector<int32_t>{2, 3});
  cache.batch_repeat_interleave(2);
  EXPECT_EQ(columns(cache, 1), (Floats{0, 1, 2, 3}));
  EXPECT_EQ(columns(cache, 2), (Floats{0, 101, 102, 103}));
  EXPECT_NE(error_text([&] {
              cache.reorder_cache(std::vector<int32_t>{0});
            }).find("1 indices on a cache of batch 4"),
            std::string::npos);
  EXPECT_NE(error_text([&] { cache.batch_select_indices(std::vector<int32_t>{4}); }).find("row 4"),
            std::string::npos);
  EXPECT_NE(error_text([&] { cache.batch_repeat_interleave(0); }).find("by 0"), std::string::npos);
  cache.batch_select_indices(std::vector<int32_t>{});
  EXPECT_EQ(inner.batch(), 0);
}

TEST_P(PaddedCaches, Case05_RepeatingAndSelectingEveryThirdRowGivesTheOriginal) {
  Cache inner = make();
  PaddedCache cache(inner, machine_.exec, machine_.host);
  feed(cache, 1, 5);
  cache.batch_repeat_interleave(3);
  cache.batch_select_indices(std::vector<int32_t>{0});
  EXPECT_EQ(columns(cache, 0), (Floats{0, 1, 2, 3, 4}));
}

TEST_P(PaddedCaches, Case12_AnotherBatchIsRefusedUntilReset) {
  Cache inner = make();
  PaddedCache cache(inner, machine_.exec, machine_.host);
  feed(cache, 1, 5);
  EXPECT_NE(error_text([&] { feed(cache, 2, 1); }).find("batch 2 on a cache of batch 1"),
            std::string::npos);
  EXPECT_EQ(columns(cache, 0), (Floats{0, 1, 2, 3, 4}));
  cache.reset();
  EXPECT_EQ(cache.get_seq_length(), 0);
  EXPECT_FALSE(cache.keys_values(0));
  feed(cache, 2, 2);
  EXPECT_EQ(columns(cache, 1), (Floats{100, 101}));
}

TEST_P(PaddedCaches, MaskSizesAreTheReferences) {
  Cache inner = make();
  PaddedCache cache(inner, machine_.exec, machine_.host);
  const bool fixed = GetParam() == "static";
  EXPECT_EQ(cache.get_max_cache_shape(), fixed ? 16 : -1);
  feed(cache, 2, 5);
  EXPECT_EQ(cache.get_mask_sizes(3, 0), (std::pair<int64_t, int64_t>{fixed ? 16 : 8, 0}));
}

TEST_P(PaddedCaches, ACachePositionThatLeavesAGapIsRefused) {
  Cache inner = make();
  PaddedCache cache(inner, machine_.exec, machine_.host);
  feed(cache, 1, 2);
  EXPECT_NE(error_text([&] {
              cache.update(0, tokens(1, 0, 1), tokens(1, 0, 1), 3);
            }).find("cache_position 3"),
            std::string::npos);
}

}  // namespace
}  // namespace larder::test
