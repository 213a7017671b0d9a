// Repeatable random numbers for kernel tests.
#pragma once

#include <cstdint>
#include <vector>

namespace larder::test {

// `count` values of about normal distribution with standard deviation `scale`. The same seed gives
// the same values on every machine.
std::vector<float> random_floats(int64_t count, uint64_t seed, float scale = 1.0f);

}  // namespace larder::test
