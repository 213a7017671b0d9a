#include "tests/support/random_floats.h"

#include <cstddef>

namespace larder::test {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014): no state to fill for a seed, which most tests draw few
// numbers of.
uint64_t next_bits(uint64_t& state) {
  uint64_t bits = state += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// The sum of four uniform numbers below 2^16.
int64_t four_uniform(uint64_t bits) {
  return static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                              (bits >> 48));
}

}  // namespace

std::vector<float> random_floats(int64_t count, uint64_t seed, float scale) {
  uint64_t state = seed * 0xd1342543de82ef95 + 1;
  std::vector<float> values(static_cast<size_t>(count));
  // Twelve uniform numbers sum to variance 1; std::normal_distribution differs between libraries.
  for (float& value : values) {
    int64_t sum = 6 - (int64_t{6} << 16);
    for (int i = 0; i < 3; ++i) sum += four_uniform(next_bits(state));
    value = static_cast<float>(static_cast<double>(sum) * 0x1p-16) * scale;
  }
  return values;
}

}  // namespace larder::test
