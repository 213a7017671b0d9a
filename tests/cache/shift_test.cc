// Context shift of dense layers: which tokens stay, and how their keys turn.
#include <gtest/gtest.h>

#include <cmath>

#include "larder/base/error.h"
#include "larder/cache/key_shift.h"
#include "larder/cache/registry.h"
#include "tests/support/kv_steps.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr int32_t kHeads = 2, kDim = 8, kHalf = 3;  // the last two channels do not turn

// cos and sin of `positions` positions.
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

// A cache whose keys are known before rotation: token t of the run is random by t.
class ShiftedCache : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
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
  void feed_token(int64_t token) {
    const int64_t position = cache_.seq_len(0);
    const int32_t q_start[] = {0, 1}, slot = 0;
    const Step step{1, 1, q_start, &position, &slot, false};
    std::vector<float> k = turned(token, position), v = raw(token + 1000);
    const Shape shape{1, kHeads, kDim};
    cache_.begin(step);
    cache_.kv(0).append(machine_.exec, TensorView::contiguous(k.data(), DType::kF32, shape),
                        TensorView::contiguous(v.data(), DType::kF32, shape), step);
    cache_.layer(0).commit(step);
    tokens_.push_back(token);
  }
  void shift(int64_t keep, int64_t discard) {
    const Angles angles(-discard);
    cache_.shift(0, std::vector<ContextShift>{{keep, discard, angles.cos, angles.sin}});
    tokens_.erase(tokens_.begin() + keep, tokens_.begin() + keep + discard);
  }
  // Every key is that of its token at its present position, every value its token's.
  void check(const Cache& cache, double tolerance) const {
    const KVLayer& layer = cache.kv(0);
    const auto len = static_cast<int64_t>(tokens_.size());
    ASSERT_EQ(layer.seq_len(0), len);
    const Shape shape{kHeads, len, kDim};
    const Tensor k(host_, shape, layer.dtype(), "test"), v(host_, shape, layer.dtype(), "test");
    layer.read(0, k, v);
    const Tensor k32 = clone(host_, k, DType::kF32, "test");
    const Tensor v32 = clone(host_, v, DType::kF32, "test");
    for (int64_t i = 0; i < len; ++i) {
      const auto token = tokens_[static_cast<size_t>(i)];
      const std::vector<float> key = turned(token, i), value = raw(token + 1000);
      for (int32_t j = 0; j < kHeads * kDim; ++j) {
        const int64_t at = (j / kDim * len + i) * kDim + j % kDim;
        const auto index = static_cast<size_t>(j);
        EXPECT_NEAR(k32.as<float>()[at], key[index], tolerance) << "token " << i << " of " << len;
        // V is stored once: as near as its own rounding, however many shifts.
        EXPECT_NEAR(v32.as<float>()[at], value[index], layer.dtype() == DType::kF32 ? 0 : 0.02);
      }
    }
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  double tolerance() const { return dtype() == DType::kF32 ? 1e-5 : 0.06; }

  mutable HostAllocator host_;
  Machine machine_;
  Cache cache_ = CacheRegistry().make(
      std::get<0>(GetParam()), std::vector<LayerSpec>{{kHeads, kDim, 0}}, {dtype(), 160}, host_);
  std::vector<int64_t> tokens_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, ShiftedCache,
                         ::testing::Combine(::testing::Values("dynamic", "dynamic_full", "static"),
                                            ::testing::Values(DType::kF32, DType::kBF16)));

TEST_P(ShiftedCache, Case48_FiveShiftsLeaveEveryKeyWhereItsPositionPutsIt) {
  int64_t next = 0;
  for (int round = 0; round < 5; ++round) {
    while (tokens_.size() < 16) feed_token(next++);
    shift(2, 7);
    ASSERT_EQ(cache_.seq_len(0), 9);
    check(cache_, tolerance());
  }
}

TEST_P(ShiftedCache, Case48_ShiftsCrossBlocks) {
  int64_t next = 0;
  while (tokens_.size() < 150) feed_token(next++);
  shift(5, 61);
  check(cache_, tolerance());
  shift(0, 3);
  while (tokens_.size() < 140) feed_token(next++);
  shift(70, 70);
  check(cache_, tolerance());
}

TEST_P(ShiftedCache, Case48_AForkIsNotShiftedWithIt) {
  for (int64_t token = 0; token < 100; ++token) feed_token(token);
  const Cache fork = cache_.fork();
  const std::vector<int64_t> before = tokens_;
  shift(2, 50);
  check(cache_, tolerance());
  tokens_ = before;
  check(fork, tolerance());
}

TEST_P(ShiftedCache, Case48_AShiftThatTheRowCannotHaveIsRefused) {
  for (int64_t token = 0; token < 10; ++token) feed_token(token);
  for (const auto& [keep, discard] : {std::pair{-1, 2}, {0, 0}, {0, -3}, {0, 11}, {8, 3}, {11, 1}})
    EXPECT_THROW(shift(keep, discard), Error) << keep << " " << discard;
  EXPECT_THROW(cache_.shift(1, std::vector<ContextShift>{{0, 1, {}, {}}}), Error);
  const std::vector<float> many(kDim / 2 + 1);
  EXPECT_THROW(cache_.shift(0, std::vector<ContextShift>{{0, 1, many, many}}), Error);
  check(cache_, tolerance());
}

}  // namespace
}  // namespace larder::test
