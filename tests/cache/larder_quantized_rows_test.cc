// The quantized cache's own backend: what happens to whole rows.
#include "larder/base/error.h"
#include "tests/cache/larder_quantized_fixture.h"

namespace larder::test {
namespace {

TEST_F(LarderQuantized, Case06_RowOperationsMoveCodesAndExactTokensAlike) {
  for (const std::string& config : kConfigs) {
    Cache cache = make(config, host_, 2);
    feed(cache, {150, 90});
    const Kept a = kept(cache, 0, 1), b = kept(cache, 1, 1);
    cache.select_rows(std::vector<int32_t>{1, 0});
    EXPECT_TRUE(kept(cache, 0, 1) == b && kept(cache, 1, 1) == a) << config;
    cache.select_rows(std::vector<int32_t>{1});
    EXPECT_EQ(cache.batch(), 1);
    EXPECT_TRUE(kept(cache, 0, 1) == a);
    cache.select_rows(std::vector<int32_t>{0, 0});
    feed(cache, {60, 60}, {0, 7});
    const Kept same = kept(cache, 0, 0), other = kept(cache, 1, 0);
    EXPECT_TRUE(exact(same, 209, 209, 0));
    EXPECT_TRUE(exact(other, 209, 209, 7));
    for (int64_t i = 0; i < 64; ++i) EXPECT_TRUE(same.same_token(other, i));
    cache.reset();
    EXPECT_EQ(cache.seq_len(0), 0);
    feed(cache, {5}, {3});
    EXPECT_TRUE(exact(kept(cache, 0, 1), 4, 4, 3));
  }
}

TEST_F(LarderQuantized, Case06_CropIsExactInTheResidualAndInTheCodes) {
  for (const std::string& config : kConfigs) {
    for (const int64_t len : {149, 129, 128, 127, 100, 65, 64, 63, 1, 0}) {
      Cache cache = make(config);
      feed(cache, {150});
      Cache kept_aside = cache.fork();
      const Kept before = kept(cache);
      cache.crop(std::vector<int64_t>{len});
      const Kept after = kept(cache);
      ASSERT_EQ(after.len, len);
      for (int64_t i = 0; i < len; ++i)
        EXPECT_TRUE(after.same_token(before, i)) << config << " token " << i << " of " << len;
      feed(cache, {70});
      EXPECT_EQ(cache.seq_len(0), len + 70);
      EXPECT_TRUE(exact(kept(cache), len + 69, len + 69));
      EXPECT_TRUE(kept(kept_aside) == before) << "a fork saw the crop";
    }
  }
}

TEST_F(LarderQuantized, AForkSharesBlocksAndEachGoesItsOwnWay) {
  Cache cache = make(R"({"residual_length": 16})", tracking_);
  feed(cache, {190});
  const size_t live = tracking_.of("kv").live;
  Cache fork = cache.fork();
  EXPECT_EQ(tracking_.of("kv").live, live);
  feed(cache, {70});
  Fed other = tokens_for(fork, {70}, {9});
  run(fork, other);
  EXPECT_TRUE(exact(kept(cache), 259, 259, 0));
  EXPECT_TRUE(exact(kept(fork), 259, 259, 9));
  const Kept a = kept(cache), b = kept(fork);
  for (int64_t i = 0; i < 190; ++i)
    EXPECT_TRUE(a.same_token(b, i) || i >= 128) << i << ": blocks that were full are shared";
}

TEST_F(LarderQuantized, ATentativeStepStopsBeforeAFlushAndCountsAsIfFedOneByOne) {
  for (int64_t start : {10, 70, 79, 80, 81, 143}) {
    Cache cache = make(R"({"residual_length": 16})"), plain = make(R"({"residual_length": 16})");
    feed(cache, {start});
    feed(plain, {start});
    const int64_t limit = cache.tentative_limit(0);
    EXPECT_EQ(limit, 16 + 64 * (std::max<int64_t>(0, start - 16) / 64 + 1) - start);
    Fed much = tokens_for(cache, {limit + 1}, {0});
    EXPECT_THROW(cache.begin(much.step(true)), Error);
    Fed fed = tokens_for(cache, {limit}, {0});
    for (const int64_t count : {int64_t{0}, limit / 2, limit}) {
      Cache tried = cache.fork(), wanted = plain.fork();
      run(tried, fed, true);
      EXPECT_EQ(tried.seq_len(0), start);
      tried.accept(fed.step(true), std::vector<int32_t>{static_cast<int32_t>(count)});
      feed_one_by_one(wanted, count);
      EXPECT_TRUE(kept(tried) == kept(wanted)) << start << " and " << count;
      feed(tried, {20});
      feed(wanted, {20});
      EXPECT_TRUE(kept(tried) == kept(wanted)) << start << " and " << count;
    }
  }
}

TEST_F(LarderQuantized, ACancelledStepGivesTheTokensBack) {
  for (const int64_t start : {0, 30, 64, 100, 200}) {
    for (const int64_t count : {1, 30, 64, 300}) {
      Cache cache = make(R"({"residual_length": 16})", tracking_);
      if (start > 0) feed(cache, {start});
      const Kept before = start > 0 ? kept(cache) : Kept{};
      const size_t live = tracking_.of("kv").live;
      Fed fed = tokens_for(cache, {count}, {0});
      cache.begin(fed.step(false));
      cache.cancel(fed.step(false));
      EXPECT_EQ(tracking_.of("kv").live, live);
      ASSERT_EQ(cache.seq_len(0), start);
      if (start == 0) continue;
      EXPECT_TRUE(kept(cache) == before);
      run(cache, fed);
      cache.cancel(fed.step(false));  // after commit: what became codes in whole blocks stays so
      ASSERT_EQ(cache.seq_len(0), start);
      const Kept after = kept(cache);
      for (int64_t i = start / 64 * 64; i < start; ++i)
        EXPECT_TRUE(after.same_token(before, i)) << start << " + " << count << " token " << i;
      for (int64_t i = 0; i < start; ++i) EXPECT_NEAR(after.key(i, 1), before.key(i, 1), 0.6f) << i;
      feed(cache, {count});
      EXPECT_TRUE(exact(kept(cache), start + count - 1, start + count - 1));
    }
  }
}

TEST_F(LarderQuantized, ASavedRowComesBackBitForBit) {
  for (const std::string& config : kConfigs) {
    Cache cache = make(config);
    feed(cache, {150, 3});
    std::vector<RowImage> images;
    std::vector<RowImageView> views;
    for (const int32_t row : {0, 1}) images.push_back(cache.layer(0).save(row, host_));
    for (const RowImage& image : images) {
      RowImageView view{image.seq_len, {}};
      for (const SavedTensor& saved : image.tensors)
        view.tensors.push_back({saved.name, saved.tensor});
      views.push_back(view);
    }
    Cache other = make(config);
    feed(other, {20}, {5});
    EXPECT_EQ(other.layer(0).format(), cache.layer(0).format());
    other.layer(0).load(views)->apply();
    EXPECT_TRUE(kept(other, 0) == kept(cache, 0) && kept(other, 1) == kept(cache, 1)) << config;
    feed(other, {80, 80});
    feed(cache, {80, 80});
    EXPECT_TRUE(kept(other, 0) == kept(cache, 0)) << config;
    const Kept before = kept(other, 0);
    views[0].seq_len = 151;
    EXPECT_THROW(other.layer(0).load(views), Error);
    views[0].seq_len = 150;
    views[0].tensors.pop_back();
    EXPECT_THROW(other.layer(0).load(views), Error);
    EXPECT_TRUE(kept(other, 0) == before);
  }
}

TEST_F(LarderQuantized, AnAssignedRowIsWhatTheSameTokensFedWouldBe) {
  for (const std::string& config : kConfigs) {
    Cache dense =
        CacheRegistry().make("dynamic", std::vector<LayerSpec>{{kHeads, kDim, 0}}, {}, host_);
    Cache fed = make(config), assigned = make(config);
    feed(dense, {210, 10});
    feed(fed, {210, 10});
    std::vector<Kept> rows = {kept(dense, 0), kept(dense, 1)};
    std::vector<RowTokens> tokens;
    for (Kept& row : rows) {
      const Shape shape{kHeads, row.len, kDim};
      tokens.push_back({0, TensorView::contiguous(row.k.data(), DType::kF32, shape),
                        TensorView::contiguous(row.v.data(), DType::kF32, shape)});
    }
    assigned.kv(0).assign(tokens)->apply();
    EXPECT_TRUE(kept(assigned, 0) == kept(fed, 0) && kept(assigned, 1) == kept(fed, 1)) << config;
    tokens[0].first_position = 3;
    EXPECT_THROW(assigned.kv(0).assign(tokens), Error);
  }
}

TEST_F(LarderQuantized, Case48_AShiftTurnsKeysAndLeavesValues) {
  const std::vector<float> cos = {0.6f, 0.28f}, sin = {-0.8f, 0.96f};  // of one discard
  for (const std::string& config : kConfigs) {
    Cache cache = make(config);
    feed(cache, {215});
    const Kept before = kept(cache);
    const ContextShift shift{70, 33, cos, sin};
    cache.shift(0, std::vector<ContextShift>{shift});
    ASSERT_EQ(cache.seq_len(0), 182);
    const Kept after = kept(cache);
    float worst = 0, worst_exact = 0;
    for (int64_t i = 0; i < 182; ++i) {
      const int64_t from = i < 70 ? i : i + 33;
      for (int64_t d = 0; d < kDim; ++d) {
        EXPECT_EQ(after.value(i, d), before.value(from, d)) << config;
        float want = before.key(from, d);
        if (i >= 70 && d < 4) {
          const auto j = static_cast<size_t>(d % 2);
          const float a = before.key(from, d % 2), b = before.key(from, d % 2 + 2);
          want = d < 2 ? a * cos[j] - b * sin[j] : b * cos[j] + a * sin[j];
        }
        const float error = std::fabs(after.key(i, d) - want);
        worst = std::max(worst, error);
        if (i >= 182 - 23) worst_exact = std::max(worst_exact, error);
      }
    }
    EXPECT_LE(worst, 0.5f) << config << ": a step of 4 bits";
    EXPECT_LE(worst_exact, 1e-5f) << config;
    feed(cache, {100});
    EXPECT_TRUE(exact(kept(cache), 281, 281));
  }
}

}  // namespace
}  // namespace larder::test
