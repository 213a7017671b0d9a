// Context shift of quantized caches: codes of V move, keys turn and are quantized again.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "larder/base/error.h"
#include "larder/cache/key_shift.h"
#include "tests/support/quantized_fixture.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr int32_t kHeads = 2, kDim = 32, kHalf = 12;

struct Angles {
  std::vector<float> cos, sin;
  explicit Angles(int64_t positions) {
    for (int i = 0; i < kHalf; ++i) {
      const double angle = static_cast<double>(positions) * std::pow(100.0, -i / double{kHalf});
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
};

class Case48 : public Quantized {
 protected:
  static std::vector<float> raw(int64_t token) {
    return random_floats(kHeads * kDim, static_cast<uint64_t>(token) + 5);
  }
  static std::vector<float> turned(int64_t token, int64_t position) {
    std::vector<float> key = raw(token);
    const Angles angles(position);
    for (int32_t h = 0; h < kHeads; ++h) turn_key(key.data() + h * kDim, angles.cos, angles.sin);
    return key;
  }
  void feed_tokens(Cache& cache, int64_t count) {
    std::vector<float> k, v;
    std::vector<int64_t> position;
    for (int64_t i = 0; i < count; ++i) {
      position.push_back(cache.seq_len(0) + i);
      const std::vector<float> key = turned(next_, position.back()), value = raw(next_ + 1000);
      k.insert(k.end(), key.begin(), key.end());
      v.insert(v.end(), value.begin(), value.end());
      tokens_.push_back(next_++);
    }
    const int32_t q_start[] = {0, static_cast<int32_t>(count)}, slot = 0;
    const Step step{1, static_cast<int32_t>(count), q_start, position.data(), &slot, false};
    const Shape shape{count, kHeads, kDim};
    cache.begin(step);
    cache.kv(0).append(machine_.exec, TensorView::contiguous(k.data(), DType::kF32, shape),
                       TensorView::contiguous(v.data(), DType::kF32, shape), step);
    cache.layer(0).commit(step);
  }
  void shift(Cache& cache, int64_t keep, int64_t discard) {
    const Angles angles(-discard);
    cache.shift(0, std::vector<ContextShift>{{keep, discard, angles.cos, angles.sin}});
    tokens_.erase(tokens_.begin() + keep, tokens_.begin() + keep + discard);
  }
  // Keys within `steps` steps of where their positions put them.
  void check_keys(const Cache& cache, double steps) const {
    const std::vector<float> got = values(cache, 0, 0);
    const QuantizedLayer& at = layer(cache);
    const Quantizer& q = at.layout().k.quantizer;
    ASSERT_EQ(cache.seq_len(0), static_cast<int64_t>(tokens_.size()));
    for (int64_t t = 0; t < cache.seq_len(0); ++t) {
      const std::vector<float> key = turned(tokens_[static_cast<size_t>(t)], t);
      for (int32_t g = 0; g < kHeads * kDim; g += q.group_size) {
        const auto [low, high] =
            std::minmax_element(key.begin() + g, key.begin() + g + q.group_size);
        // A turn can widen the group that was quantized before it.
        const double step = std::numbers::sqrt2 * static_cast<double>(*high - *low) / q.max_code();
        for (int32_t i = g; i < g + q.group_size; ++i) {
          EXPECT_NEAR(got[static_cast<size_t>(t * kHeads * kDim + i)], key[static_cast<size_t>(i)],
                      steps * step + (at.dtype() == DType::kF32 ? 1e-5 : 0.03))
              << "token " << t;
        }
      }
    }
  }

  std::vector<int64_t> tokens_;
  int64_t next_ = 0;
};

TEST_F(Case48, KeysAreWithinAStepOfWhereTheirNewPositionsPutThem) {
  for (const char* config : {R"({"backend":"hqq","nbits":8,"q_group_size":16,"residual_length":5})",
                             R"({"q_group_size":16,"residual_length":5})",
                             R"({"q_group_size":32,"residual_length":3})"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Cache cache = make(config, {kHeads, kDim}, dtype);
      tokens_.clear(), next_ = 0;
      for (int round = 0; round < 5; ++round) {
        feed_tokens(cache, round == 0 ? 10 : 1);
        while (tokens_.size() < 16) feed_tokens(cache, 1);
        const std::vector<float> v = values(cache, 0, 1);
        shift(cache, 2, 7);
        ASSERT_EQ(cache.seq_len(0), 9);
        check_keys(cache, 1);
        const std::vector<float> moved = values(cache, 0, 1);
        for (size_t i = 0; i < moved.size(); ++i) {
          const size_t kept = size_t{2} * kHeads * kDim;
          EXPECT_EQ(moved[i], v[i < kept ? i : i + size_t{7} * kHeads * kDim]);
        }
      }
    }
  }
}

TEST_F(Case48, ShiftsOfCodesAndResidualCrossBlocks) {
  Cache cache =
      make(R"({"backend":"hqq","nbits":8,"q_group_size":16,"residual_length":20})", {kHeads, kDim});
  feed_tokens(cache, 140);
  feed_tokens(cache, 15);
  shift(cache, 70, 66);
  check_keys(cache, 1);
  shift(cache, 0, 3);
  shift(cache, 76, 10);  // the whole rest
  check_keys(cache, 1.5);
  feed_tokens(cache, 30);
  check_keys(cache, 2);
}

TEST_F(Case48, AForkIsNotShiftedWithIt) {
  Cache cache = make(R"({"q_group_size":16,"residual_length":20})", {kHeads, kDim});
  feed_tokens(cache, 100);
  feed_tokens(cache, 5);
  const Cache fork = cache.fork();
  const auto before = contents(cache, 0);
  shift(cache, 2, 50);
  EXPECT_TRUE(contents(fork, 0) == before);
}

TEST_F(Case48, GroupsThatCrossTokensAreRefusedAndNothingChanges) {
  for (const char* config : {R"({"q_group_size":64})", R"({"axis_key":-1,"q_group_size":16})",
                             R"({"backend":"hqq","axis_value":0,"q_group_size":16})",
                             R"({"axis_key":-1,"q_group_size":16,"append_only":true})"}) {
    Cache cache = make(config, {kHeads, kDim});
    tokens_.clear();
    feed_tokens(cache, 20);
    const auto before = contents(cache, 0);
    try {
      shift(cache, 2, 7);
      ADD_FAILURE() << config;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    }
    EXPECT_TRUE(contents(cache, 0) == before);
  }
}

}  // namespace
}  // namespace larder::test
