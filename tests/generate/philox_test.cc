#include "larder/generate/philox.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that the authors of Philox publish with it.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformIsExactInUnitIntervalAndEven) {
  EXPECT_EQ(uniform_at(0, 0), static_cast<double>(0xe169c58d6627e8d5 >> 11) / 9007199254740992.0);
  double sum = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = uniform_at(42, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  // Five standard deviations of the mean: 5 / sqrt(12 * 100000).
  EXPECT_NEAR(sum / 100000, 0.5, 0.0046);
}

TEST(Philox, SeedAndIndexBothMatterInAllTheirBits) {
  const double base = uniform_at(1, 1);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(uniform_at(1 ^ (uint64_t{1} << bit), 1), base) << bit;
    EXPECT_NE(uniform_at(1, 1 ^ (uint64_t{1} << bit)), base) << bit;
  }
}

}  // namespace
}  // namespace larder
