#include "tests/support/random_floats.h"

#include <random>

namespace larder::test {

std::vector<float> random_floats(int64_t count, uint64_t seed, float scale) {
  std::mt19937_64 engine(seed);
  std::vector<float> values(static_cast<size_t>(count));
  // Twelve uniform numbers sum to variance 1; std::normal_distribution differs between libraries.
  for (float& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(engine() >> 11) * 0x1p-53;
    value = static_cast<float>(sum) * scale;
  }
  return values;
}

}  // namespace larder::test
