// The quantized cache's own backend. Tokens are random; what a row keeps is read back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "larder/base/error.h"
#include "larder/cache/kinds.h"
#include "larder/cache/larder_quantized_config.h"
#include "larder/cache/registry.h"
#include "larder/tensor/hadamard.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/error_of.h"
#include "tests/support/machine.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr int32_t kHeads = 2, kDim = 16;

// What a layer keeps of a row, as f32 [heads, kept, dim].
struct Kept {
  std::vector<float> k, v;
  int64_t len = 0;
  float key(int64_t token, int64_t channel, int64_t head = 0) const {
    return k[static_cast<size_t>((head * len + token) * kDim + channel)];
  }
  float value(int64_t token, int64_t channel, int64_t head = 0) const {
    return v[static_cast<size_t>((head * len + token) * kDim + channel)];
  }
  bool same_token(const Kept& other, int64_t token) const {
    for (int64_t head = 0; head < kHeads; ++head)
      for (int64_t d = 0; d < kDim; ++d)
        if (key(token, d, head) != other.key(token, d, head) ||
            value(token, d, head) != other.value(token, d, head))
          return false;
    return true;
  }
  bool operator==(const Kept& other) const { return k == other.k && v == other.v; }
};

class LarderQuantized : public ::testing::Test {
 protected:
  Cache make(const std::string& config, Allocator& allocator, int layers = 1,
             DType dtype = DType::kF32, int64_t window = 0, int64_t rollback = 0) {
    CacheRegistry registry;
    registry.add({"own", make_larder_quantized_layers, false});
    const std::vector<LayerSpec> specs(static_cast<size_t>(layers),
                                       LayerSpec{kHeads, kDim, window});
    return registry.make("own", specs, {dtype, 0, rollback, config}, allocator);
  }
  Cache make(const std::string& config) { return make(config, host_); }

  // Token `position` of stream `stream`: what any row that follows the stream is fed.
  static std::vector<float> token(int64_t stream, int64_t position, bool value) {
    return random_floats(kHeads * kDim,
                         static_cast<uint64_t>(stream * 100000 + position * 2 + (value ? 1 : 0)));
  }

  struct Fed {
    std::vector<int32_t> q_start{0}, slot;
    std::vector<int64_t> position;
    std::vector<float> k, v;
    Step step(bool tentative) const {
      return {static_cast<int32_t>(slot.size()),
              q_start.back(),
              q_start.data(),
              position.data(),
              slot.data(),
              tentative};
    }
  };

  // counts[i] tokens for slot i of stream streams[i].
  Fed tokens_for(const Cache& cache, const std::vector<int64_t>& counts,
                 const std::vector<int64_t>& streams) const {
    Fed fed;
    for (size_t row = 0; row < counts.size(); ++row) {
      const int64_t len = cache.seq_len(static_cast<int32_t>(row));
      for (int64_t i = 0; i < counts[row]; ++i) {
        fed.position.push_back(len + i);
        const auto k = token(streams[row], len + i, false), v = token(streams[row], len + i, true);
        fed.k.insert(fed.k.end(), k.begin(), k.end());
        fed.v.insert(fed.v.end(), v.begin(), v.end());
      }
      fed.slot.push_back(static_cast<int32_t>(row));
      fed.q_start.push_back(static_cast<int32_t>(fed.position.size()));
    }
    return fed;
  }

  KVView run(Cache& cache, Fed& fed, bool tentative = false) {
    const Step step = fed.step(tentative);
    cache.begin(step);
    return put(cache, fed, step);
  }
  KVView put(Cache& cache, Fed& fed, const Step& step) {
    const Shape shape{step.total_q, kHeads, kDim};
    KVView view;
    for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
      view = cache.kv(layer).append(machine_.exec,
                                    TensorView::contiguous(fed.k.data(), DType::kF32, shape),
                                    TensorView::contiguous(fed.v.data(), DType::kF32, shape), step);
      seam_ = view.segment[0].len != nullptr ? view.segment[0].len[0] : 0;
      cache.layer(layer).commit(step);
    }
    return view;
  }
  void feed(Cache& cache, const std::vector<int64_t>& counts, std::vector<int64_t> streams = {}) {
    if (streams.empty())
      for (size_t i = 0; i < counts.size(); ++i) streams.push_back(static_cast<int64_t>(i));
    Fed fed = tokens_for(cache, counts, streams);
    run(cache, fed);
  }
  void feed_one_by_one(Cache& cache, int64_t count) {
    for (int64_t i = 0; i < count; ++i) feed(cache, {1});
  }

  Kept kept(const Cache& cache, int32_t row = 0, int32_t layer = 0) const {
    const KVLayer& kv = cache.kv(layer);
    Kept result;
    result.len = kv.kept_len(row);
    HostAllocator host;
    const Shape shape{kHeads, result.len, kDim};
    const Tensor k(host, shape, kv.dtype(), "test"), v(host, shape, kv.dtype(), "test");
    kv.read(row, k, v);
    result.k.resize(static_cast<size_t>(shape.count()));
    result.v.resize(result.k.size());
    copy_into(TensorView::contiguous(result.k.data(), DType::kF32, shape), k);
    copy_into(TensorView::contiguous(result.v.data(), DType::kF32, shape), v);
    return result;
  }
  // Whether the token is what was fed, up to the rounding of a Hadamard rotation and back.
  static bool exact(const Kept& row, int64_t index, int64_t position, int64_t stream = 0) {
    const auto k = token(stream, position, false), v = token(stream, position, true);
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t d = 0; d < kDim; ++d) {
        const auto i = static_cast<size_t>(head * kDim + d);
        if (std::fabs(row.key(index, d, head) - k[i]) > 2e-6f) return false;
        if (row.value(index, d, head) != v[i]) return false;
      }
    }
    return true;
  }

  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
  int32_t seam_ = 0;  // tokens of row 0 that the last view showed as codes
};

const std::vector<std::string> kConfigs = {
    R"({"residual_length": 16})",
    R"({"residual_length": 16, "keys_per_channel": false})",
    R"({"residual_length": 16, "hadamard": true, "nbits_key": 8})",
    R"({"residual_length": 16, "nbits_key": 4, "nbits_value": 2, "symmetric": true, "q_group_size": 8})",
    R"({"residual_length": 16, "nbits_key": 16, "nbits_value": 3})",
    R"({"residual_length": 0, "nbits": 8, "q_group_size": 32})",
};

TEST_F(LarderQuantized, TheSeamFollowsTheRuleAtEveryLength) {
  Cache cache = make(R"({"residual_length": 16})");
  for (int64_t p = 0; p < 300; ++p) {
    feed(cache, {1});
    EXPECT_EQ(seam_, 64 * (std::max<int64_t>(0, p - 16) / 64)) << "query at " << p;
    const Kept row = kept(cache);
    const int64_t coded = 64 * (std::max<int64_t>(0, p + 1 - 16) / 64);
    if (coded > 0) {
      EXPECT_FALSE(exact(row, coded - 1, coded - 1)) << "at length " << p + 1;
    }
    EXPECT_TRUE(exact(row, coded, coded)) << "at length " << p + 1;
    EXPECT_TRUE(exact(row, p, p));
  }
}

TEST_F(LarderQuantized, Case07_NewTokensOfAStepAreExactInThatStepAndNothingIsLost) {
  for (const int64_t residual : {0, 1, 4, 64, 100}) {
    Cache cache = make(str(R"({"residual_length": )", residual, "}"));
    int64_t len = 0;
    for (const int64_t count : {3, 1, 200, 1, 1, 5, 64, 63, 130}) {
      feed(cache, {count});
      EXPECT_EQ(seam_, 64 * (std::max<int64_t>(0, len - residual) / 64));
      len += count;
      EXPECT_EQ(cache.seq_len(0), len);
      const Kept row = kept(cache);
      ASSERT_EQ(row.len, len);
      const int64_t coded = 64 * (std::max<int64_t>(0, len - residual) / 64);
      for (int64_t i = 0; i < len; ++i) {
        if (i >= coded) {
          EXPECT_TRUE(exact(row, i, i)) << i << " of " << len;
        }
        EXPECT_NEAR(row.key(i, 3, 1), token(0, i, false)[kDim + 3], 0.6f);
        EXPECT_NEAR(row.value(i, 3, 1), token(0, i, true)[kDim + 3], 0.6f);
      }
    }
  }
}

TEST_F(LarderQuantized, Case07_ATokenIsQuantizedOnce) {
  for (const std::string& config : kConfigs) {
    Cache cache = make(config);
    feed(cache, {100});
    const Kept before = kept(cache);
    feed_one_by_one(cache, 400);
    const Kept after = kept(cache);
    for (int64_t i = 0; i < 64; ++i) EXPECT_TRUE(after.same_token(before, i)) << config << i;
  }
}

TEST_F(LarderQuantized, ChunksWithinTheStepLimitLeaveTheSameBytes) {
  for (const std::string& config : kConfigs) {
    Cache one = make(config), chunks = make(config);
    feed_one_by_one(one, 333);
    std::vector<int32_t> seams;
    while (chunks.seq_len(0) < 333) {
      const int64_t limit = chunks.step_limit(0);
      ASSERT_GT(limit, 0);
      const int64_t count = std::min({limit, int64_t{333} - chunks.seq_len(0), int64_t{50}});
      feed(chunks, {count});
    }
    EXPECT_TRUE(kept(one) == kept(chunks)) << config;
  }
}

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

TEST_F(LarderQuantized, Case11_ANonFiniteNumberStaysInItsGroup) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Cache cache = make(R"({"residual_length": 0, "q_group_size": 8})"),
          clean = make(R"({"residual_length": 0, "q_group_size": 8})");
    Fed fed = tokens_for(cache, {64}, {0});
    run(clean, fed);
    fed.k[10 * kHeads * kDim + 3] = bad;  // token 10, head 0, channel 3
    fed.v[20 * kHeads * kDim + 3] = bad;
    run(cache, fed);
    const Kept got = kept(cache), want = kept(clean);
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < 64; ++i) {
        for (int64_t d = 0; d < kDim; ++d) {
          const bool bad_k = head == 0 && d == 3 && i / 8 == 1,
                     bad_v = head == 0 && i == 20 && d < 8;
          EXPECT_TRUE(bad_k ? std::isnan(got.key(i, d, head))
                            : got.key(i, d, head) == want.key(i, d, head));
          EXPECT_TRUE(bad_v ? std::isnan(got.value(i, d, head))
                            : got.value(i, d, head) == want.value(i, d, head));
        }
      }
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

TEST_F(LarderQuantized, KeysAreStoredTurnedAndReadBack) {
  Cache cache = make(R"({"hadamard": true})");
  Fed fed = tokens_for(cache, {5}, {0});
  const KVView view = run(cache, fed);
  EXPECT_TRUE(view.hadamard);
  const auto* stored = reinterpret_cast<const float*>(
      view.segment[1].k.data + static_cast<uintptr_t>(view.segment[1].block_table[0]));
  std::vector<float> key = token(0, 0, false);
  hadamard(key.data(), 1, kDim);
  for (size_t d = 0; d < kDim; ++d) EXPECT_EQ(stored[d], key[d]);
  const Kept row = kept(cache);
  for (int64_t d = 0; d < kDim; ++d)
    EXPECT_NEAR(row.key(4, d, 1), token(0, 4, false)[static_cast<size_t>(kDim + d)], 1e-6f);
}

TEST_F(LarderQuantized, SlidingLayersGiveBackWhatIsBehindTheWindow) {
  for (const int64_t window : {6, 40, 100, 200}) {
    Cache cache = make(R"({"residual_length": 16})", tracking_, 1, DType::kF32, window, 10);
    for (int64_t p = 0; p < 500; ++p) {
      feed(cache, {1});
      EXPECT_LE(cache.kv(0).kept_len(0), window + 10 + 64);
      EXPECT_GE(cache.kv(0).kept_len(0), std::min(window - 1 + 10, p + 1));
    }
    const Kept row = kept(cache);
    EXPECT_TRUE(exact(row, row.len - 1, 499));
    EXPECT_EQ(cache.seq_len(0), 500);
    cache.crop(std::vector<int64_t>{490});
    EXPECT_NE(error_of([&] { cache.crop(std::vector<int64_t>{300}); }), "");
    EXPECT_EQ(cache.seq_len(0), 490);
    EXPECT_NE(error_of([&] { cache.shift(0, std::vector<ContextShift>{{1, 2, {}, {}}}); }), "");
    feed(cache, {3});
    EXPECT_EQ(cache.seq_len(0), 493);
    cache.crop(std::vector<int64_t>{0});
    feed(cache, {3});
    EXPECT_TRUE(exact(kept(cache), 2, 2));
  }
}

TEST_F(LarderQuantized, FourBitsTakeThreeTenthsOfBf16At4096Tokens) {
  const std::vector<LayerSpec> specs(2, LayerSpec{3, 64, 0});
  CacheRegistry registry;
  registry.add({"own", make_larder_quantized_layers, false});
  size_t bytes[2];
  for (const size_t i : {0, 1}) {
    TrackingAllocator tracking(host_);
    Cache cache = registry.make(i == 0 ? "dynamic" : "own", specs, {DType::kBF16, 0}, tracking);
    std::vector<float> x = random_floats(512 * 3 * 64, 1);
    const TensorView kv = TensorView::contiguous(x.data(), DType::kF32, {512, 3, 64});
    for (int64_t at = 0; at < 4096; at += 512) {
      std::vector<int64_t> position(512);
      for (int64_t j = 0; j < 512; ++j) position[static_cast<size_t>(j)] = at + j;
      const int32_t q_start[] = {0, 512}, slot = 0;
      const Step step{1, 512, q_start, position.data(), &slot, false};
      cache.begin(step);
      for (int32_t layer = 0; layer < 2; ++layer) {
        cache.kv(layer).append(machine_.exec, kv, kv, step);
        cache.layer(layer).commit(step);
      }
    }
    bytes[i] = tracking.of("kv").live;
  }
  EXPECT_LE(static_cast<double>(bytes[1]), 0.31 * static_cast<double>(bytes[0]));
}

TEST_F(LarderQuantized, StepsWithinABlockAllocateNothingAndAFlushOneBlock) {
  Cache cache = make(R"({"residual_length": 16})", tracking_, 2);
  feed(cache, {65});
  std::vector<Fed> fed;
  for (int i = 0; i < 20; ++i) {
    fed.push_back(tokens_for(cache, {1}, {0}));
    fed.back().position[0] += i;
  }
  for (int i = 0; i < 20; ++i) {
    const size_t before = allocations_so_far(), blocks = tracking_.of("kv").calls;
    run(cache, fed[static_cast<size_t>(i)]);
    const bool flushes = 65 + i + 1 == 80;
    EXPECT_EQ(tracking_.of("kv").calls - blocks, flushes ? 2u : 0u) << i;
    if (i > 0 && !flushes) {
      EXPECT_EQ(allocations_so_far(), before) << i;
    }
  }
}

TEST_F(LarderQuantized, WhenMemoryRunsOutNothingHasChanged) {
  for (size_t fail_at = 0; fail_at < 60; ++fail_at) {
    FaultAllocator faults(tracking_);
    {
      Cache cache = make(R"({"residual_length": 16})", faults, 2);
      feed(cache, {150, 20});
      const Kept before = kept(cache, 0, 1);
      const size_t live = tracking_.of("kv").live;
      faults.arm(fail_at);
      try {
        feed(cache, {140, 140});
        ASSERT_GE(fail_at, 8u);
        return;
      } catch (const OutOfMemory&) {
      }
      EXPECT_EQ(tracking_.of("kv").live, live);
      EXPECT_TRUE(kept(cache, 0, 1) == before);
      faults.arm(SIZE_MAX);
      feed(cache, {140, 140});
      EXPECT_EQ(cache.seq_len(0), 290);
      EXPECT_TRUE(exact(kept(cache, 0, 1), 289, 289));
    }
    EXPECT_EQ(tracking_.of("kv").live, 0u);
  }
  FAIL() << "the step never succeeded";
}

TEST_F(LarderQuantized, Case08_HeadSizesThatGroupsDoNotDivideGetAShortLastGroup) {
  for (const int32_t dim : {20, 80, 96}) {
    CacheRegistry registry;
    registry.add({"own", make_larder_quantized_layers, false});
    Cache cache = registry.make(
        "own", std::vector<LayerSpec>{{1, dim, 0}},
        {DType::kF32, 0, 0, R"({"keys_per_channel": false, "search": false, "residual_length": 0,
                                "q_group_size": 16})"},
        host_);
    std::vector<float> x = random_floats(64 * dim, 3);
    const TensorView kv = TensorView::contiguous(x.data(), DType::kF32, {64, 1, dim});
    std::vector<int64_t> position(64);
    for (int64_t i = 0; i < 64; ++i) position[static_cast<size_t>(i)] = i;
    const int32_t q_start[] = {0, 64}, slot = 0;
    const Step step{1, 64, q_start, position.data(), &slot, false};
    cache.begin(step);
    cache.kv(0).append(machine_.exec, kv, kv, step);
    cache.layer(0).commit(step);
    const Tensor k(host_, {1, 64, dim}, DType::kF32, "test"),
        v(host_, {1, 64, dim}, DType::kF32, "test");
    cache.kv(0).read(0, k, v);
    for (int64_t t = 0; t < 64; ++t) {
      for (int64_t begin = 0; begin < dim; begin += 16) {
        const float* from = x.data() + t * dim + begin;
        const int64_t count = std::min<int64_t>(16, dim - begin);
        const auto [low, high] = std::minmax_element(from, from + count);
        for (int64_t d = 0; d < count; ++d)
          EXPECT_LE(std::fabs(k.as<float>()[t * dim + begin + d] - from[d]),
                    (*high - *low) / 15 / 2 + 0.004f);
      }
    }
  }
}

TEST_F(LarderQuantized, LayersTakeWidthsFromAList) {
  CacheRegistry registry;
  registry.add({"own", make_larder_quantized_layers, false});
  const std::vector<LayerSpec> specs(3, LayerSpec{kHeads, kDim, 0});
  Cache cache = registry.make(
      "own", specs, {DType::kBF16, 0, 0, R"({"nbits_key": [8, 16, 4], "nbits_value": [4, 16, 2]})"},
      host_);
  EXPECT_EQ(cache.layer(0).format(),
            "larder k 8 bit by channel 64 f16, v 4 bit by token 64 f16, residual 128 bf16");
  EXPECT_EQ(cache.layer(1).format(), "dense bf16");
  EXPECT_EQ(cache.layer(2).format(),
            "larder k 4 bit by channel 64 f16, v 2 bit by token 64 f16, residual 128 bf16");
}

TEST_F(LarderQuantized, SettingsThatCannotBeAreRefusedByName) {
  const std::map<std::string, std::string> refused = {
      {R"({"nbits": 5})", "nbits 5"},
      {R"({"nbits_key": [4, 4]})", "nbits_key lists 2 widths for 1 layers"},
      {R"({"residual_length": -1})", "residual_length -1"},
      {R"({"q_group_size": 24})", "q_group_size 24"},
      {R"({"q_group_size": 0})", "q_group_size 0"},
      {R"({"scale_dtype": "i8"})", "scale_dtype \"i8\""},
      {R"({"axis_key": 0})", "\"axis_key\""},
      {R"([4])", "object"},
  };
  for (const auto& [config, words] : refused) {
    const std::string error = error_of([&, &config = config] { make(config); });
    EXPECT_NE(error.find(words), std::string::npos) << config << ": " << error;
  }
  CacheRegistry registry;
  registry.add({"own", make_larder_quantized_layers, false});
  const std::string error = error_of([&] {
    registry.make("own", std::vector<LayerSpec>{{1, 24, 0}},
                  {DType::kF32, 0, 0, R"({"hadamard": true})"}, host_);
  });
  EXPECT_NE(error.find("24"), std::string::npos) << error;
}

}  // namespace
}  // namespace larder::test
