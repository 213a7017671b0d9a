// Operations on the rows of quantized caches: each acts on the codes and on the exact tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "larder/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/kv_decode.h"
#include "tests/support/kv_steps.h"
#include "tests/support/quantized_fixture.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

using Case06 = Quantized;

TEST_F(Case06, RowsMoveWithBothTheirParts) {
  for (const auto& [config, shape] : kFormats) {
    for (const std::vector<int32_t>& source :
         {std::vector<int32_t>{1, 0}, {1}, {0, 0, 1, 1}, {}, {1, 1}}) {
      Cache cache = make(config, {shape.heads, shape.head_dim, 2});
      feed_random(cache, machine_.exec, {{0, 4}, {1, 4}});
      for (int i = 0; i < 3; ++i) feed_random(cache, machine_.exec, {{0, 1}, {1, 1}});
      ASSERT_GT(layer(cache).row_at(0).quantized, 0) << config;
      ASSERT_GT(residual(cache), 0) << config;
      const auto before = std::vector{contents(cache, 0), contents(cache, 1)};
      cache.select_rows(source);
      ASSERT_EQ(cache.batch(), static_cast<int32_t>(source.size()));
      for (size_t i = 0; i < source.size(); ++i)
        EXPECT_TRUE(contents(cache, static_cast<int32_t>(i)) ==
                    before[static_cast<size_t>(source[i])])
            << config;
    }
  }
}

TEST_F(Case06, RowsThatWereOnePartAsIfTheyHadBeenFedAlone) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape);
    feed_more(cache, 0, 6);
    feed_more(cache, 0, 1);
    cache.select_rows(std::vector<int32_t>{0, 0});
    // Both flush, over blocks that they share.
    for (int i = 0; i < 9; ++i)
      feed_random(cache, machine_.exec, {{0, 1}, {1, 1}}, static_cast<uint64_t>(i));
    for (int32_t row = 0; row < 2; ++row) {
      Cache alone = make(config, shape);
      feed_more(alone, 0, 6);
      feed_more(alone, 0, 1);
      alone.select_rows(std::vector<int32_t>{0, 0});
      for (int i = 0; i < 9; ++i) feed_more(alone, row, 1, static_cast<uint64_t>(i));
      EXPECT_TRUE(contents(cache, row) == contents(alone, row)) << config << " row " << row;
    }
  }
}

TEST_F(Case06, CropActsOnTheResidualAndOnTheCodes) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape);
    feed_more(cache, 0, 4);
    for (int i = 0; i < 3; ++i) feed_more(cache, 0, 1);
    for (const int64_t len : {5, 3, 2, 0}) {
      const std::vector<float> k = values(cache, 0, 0), v = values(cache, 0, 1);
      cache.crop(std::vector<int64_t>{len});
      EXPECT_EQ(cache.seq_len(0), len);
      EXPECT_EQ(values(cache, 0, 0), first(k, len, shape)) << config;
      EXPECT_EQ(values(cache, 0, 1), first(v, len, shape)) << config;
    }
    EXPECT_EQ(tracking_.of("kv").live, 0u);
  }
}

TEST_F(Case06, AfterACropIntoTheCodesTheRowGoesOnAndFlushes) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape);
    feed_more(cache, 0, 8);
    cache.crop(std::vector<int64_t>{3});
    const std::vector<float> kept = values(cache, 0, 0);
    for (int i = 0; i < 8; ++i) feed_more(cache, 0, 1);
    EXPECT_EQ(cache.seq_len(0), 11);
    EXPECT_GE(layer(cache).row_at(0).quantized, 8) << config;
    if (layer(cache).layout().k.appends && layer(cache).layout().k.token_group == 1) {
      EXPECT_EQ(first(values(cache, 0, 0), 3, shape), kept) << config;
    }
  }
}

TEST_F(Case06, NothingOfTheCodesIsReadAfterReset) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape), fresh = make(config, shape);
    feed_more(cache, 0, 9);
    feed_more(cache, 0, 2);
    cache.reset();
    EXPECT_EQ(cache.seq_len(0), 0);
    EXPECT_EQ(tracking_.of("kv").live, 0u);
    for (Cache* both : {&cache, &fresh}) {
      feed_more(*both, 0, 5, 9);
      feed_more(*both, 0, 1, 9);
    }
    EXPECT_TRUE(contents(cache, 0) == contents(fresh, 0)) << config;
  }
}

TEST_F(Case06, AForkKeepsItsOwnAndCopiesOnWrite) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape);
    feed_more(cache, 0, 9);
    feed_more(cache, 0, 2);
    const size_t live = tracking_.of("kv").live;
    Cache fork = cache.fork();
    EXPECT_EQ(tracking_.of("kv").live, live);
    const auto before = contents(cache, 0);
    for (int i = 0; i < 6; ++i) feed_more(cache, 0, 1, 5);
    EXPECT_TRUE(contents(fork, 0) == before) << config;
    Cache alone = make(config, shape);
    feed_more(alone, 0, 9);
    feed_more(alone, 0, 2);
    for (Cache* both : {&fork, &alone})
      for (int i = 0; i < 6; ++i) feed_more(*both, 0, 1, 6);
    EXPECT_TRUE(contents(fork, 0) == contents(alone, 0)) << config;
  }
}

TEST_F(Quantized, RowsOfEveryFormatAreSavedAndLoadedBitForBit) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape, DType::kBF16), other = make(config, shape, DType::kBF16);
    feed_random(cache, machine_.exec, {{0, 9}, {1, 1}});
    for (int i = 0; i < 3; ++i) feed_random(cache, machine_.exec, {{0, 1}});
    feed_random(cache, machine_.exec, {{1, 12}});
    cache.crop(std::vector<int64_t>{12, 6});  // row 1 ends within its codes
    std::vector<RowImage> images;
    for (int32_t row = 0; row < 2; ++row) images.push_back(cache.layer(0).save(row, host_));
    std::vector<RowImageView> views;
    for (const RowImage& image : images) {
      views.push_back({image.seq_len, {}});
      for (const SavedTensor& saved : image.tensors)
        views.back().tensors.push_back({saved.name, saved.tensor});
    }
    other.layer(0).load(views)->apply();
    for (int round = 0; round < 8; ++round) {
      for (int32_t row = 0; row < 2; ++row)
        EXPECT_TRUE(contents(cache, row) == contents(other, row)) << config << round;
      for (Cache* both : {&cache, &other}) feed_random(*both, machine_.exec, {{0, 1}, {1, 1}}, 3);
    }
  }
}

TEST_F(Quantized, AnAssignedRowIsThatOfOneFirstStep) {
  for (const auto& [config, shape] : kFormats) {
    Cache stepped = make(config, shape, DType::kBF16), assigned = make(config, shape, DType::kBF16);
    Cache dense =
        CacheRegistry().make("dynamic", std::vector<LayerSpec>{{shape.heads, shape.head_dim, 0}},
                             {DType::kF32, 0}, host_);
    feed_random(stepped, machine_.exec, {{0, 11}});
    feed_random(dense, machine_.exec, {{0, 11}});
    const larder::Shape floats{shape.heads, 11, shape.head_dim};
    const Tensor k(host_, floats, DType::kF32, "test"), v(host_, floats, DType::kF32, "test");
    dense.kv(0).read(0, k, v);
    assigned.kv(0).assign(std::vector<RowTokens>{{0, k, v}})->apply();
    EXPECT_TRUE(contents(stepped, 0) == contents(assigned, 0)) << config;
    for (Cache* both : {&stepped, &assigned})
      for (int i = 0; i < 5; ++i) feed_more(*both, 0, 1);
    EXPECT_TRUE(contents(stepped, 0) == contents(assigned, 0)) << config;
  }
}

}  // namespace
}  // namespace larder::test
