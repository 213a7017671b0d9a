// exp, tanh and erf of the vector sets over the whole range of f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "larder/base/str.h"
#include "larder/cpu/simd/range_ops.h"
#include "larder/tensor/kernels.h"

namespace larder {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<const cpu::RangeOps*> vector_sets() {
  std::vector<const cpu::RangeOps*> sets;
#if defined(__x86_64__)
  const size_t count = available_kernel_sets().size();
  if (count > 1) sets.push_back(&cpu::kAvx2Ops);
  if (count > 2) sets.push_back(&cpu::kAvx512Ops);
#endif
  return sets;
}

using Function = void (*)(float*, int64_t);

// |got - want| in units of the last place of want; below the smallest normal number the grid is
// that of the subnormals.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  if (std::isinf(got) || want > double{std::numeric_limits<float>::max()})
    return got > 0 && want > double{std::numeric_limits<float>::max()} && std::isinf(got) ? 0 : 1e9;
  const int exponent = std::max(std::ilogb(want == 0 ? 0x1p-200 : want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

// Every 251st bit pattern: all exponents, both signs, infinities and NaNs, 17 million arguments.
void expect_within(Function function, double (*oracle)(double), double bound,
                   const std::string& name) {
  constexpr uint64_t kStride = 251, kBatch = 4096;
  double worst = 0;
  float at = 0;
  std::vector<float> x(kBatch), y;
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += kStride * kBatch) {
    for (uint64_t i = 0; i < kBatch; ++i)
      x[i] = std::bit_cast<float>(static_cast<uint32_t>(bits + i * kStride));
    y = x;
    function(y.data(), static_cast<int64_t>(kBatch));
    for (uint64_t i = 0; i < kBatch; ++i) {
      const double error = ulps(y[i], oracle(static_cast<double>(x[i])));
      if (error > worst) worst = error, at = x[i];
    }
  }
  EXPECT_LE(worst, bound) << name << " at " << at;
  std::cout << str(name, ": at most ", worst, " ulp, at ", at, "\n");
}

TEST(VectorMath, StaysWithinTheStatedErrors) {
  for (const cpu::RangeOps* set : vector_sets()) {
    expect_within(
        set->exp, [](double x) { return std::exp(x); }, 1.1, "exp");
    expect_within(
        set->tanh, [](double x) { return std::tanh(x); }, 1.5, "tanh");
    expect_within(
        set->erf, [](double x) { return std::erf(x); }, 1.2, "erf");
  }
}

float one(Function function, float x) {
  function(&x, 1);
  return x;
}

TEST(VectorMath, HasTheRightLimits) {
  for (const cpu::RangeOps* set : vector_sets()) {
    EXPECT_EQ(one(set->exp, -kInf), 0.0f);
    EXPECT_EQ(one(set->exp, -1e30f), 0.0f);
    EXPECT_EQ(one(set->exp, kInf), kInf);
    EXPECT_EQ(one(set->exp, 89.0f), kInf);
    EXPECT_EQ(one(set->exp, 0.0f), 1.0f);
    EXPECT_EQ(one(set->exp, -0.0f), 1.0f);
    EXPECT_GT(one(set->exp, -103.0f), 0.0f);  // subnormal, not flushed
    for (const Function odd : {set->tanh, set->erf}) {
      EXPECT_EQ(one(odd, kInf), 1.0f);
      EXPECT_EQ(one(odd, -kInf), -1.0f);
      EXPECT_EQ(one(odd, 100.0f), 1.0f);
      EXPECT_EQ(std::bit_cast<uint32_t>(one(odd, -0.0f)), 0x80000000u);
    }
    for (const Function function : {set->exp, set->tanh, set->erf})
      EXPECT_TRUE(std::isnan(one(function, std::numeric_limits<float>::quiet_NaN())));
  }
}

TEST(VectorMath, HasTheSameBitsInEveryVectorSetAndEveryLane) {
  const auto sets = vector_sets();
  if (sets.empty()) GTEST_SKIP() << "no vector set on this machine";
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 77777)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (const auto function : {&cpu::RangeOps::exp, &cpu::RangeOps::tanh, &cpu::RangeOps::erf}) {
    std::vector<float> want = x;
    for (float& v : want) v = one(sets[0]->*function, v);
    for (const cpu::RangeOps* set : sets) {
      std::vector<float> got = x;
      (set->*function)(got.data(), static_cast<int64_t>(got.size()));
      for (size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(want[i])) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << x[i];
      }
    }
  }
}

}  // namespace
}  // namespace larder
