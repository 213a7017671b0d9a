// Any cache kind's content as bytes, and feeding it numbers that its own format must round.
#pragma once

#include <vector>

#include "larder/cache/cache.h"

namespace larder::test {

// K then V of every layer that keeps some, of one row, oldest token first, in the layers' dtype.
std::vector<std::byte> contents(const Cache& cache, int32_t row);

struct RandomFeed {
  int32_t slot;
  int64_t count;
};
// Appends `count` random tokens to each row: for one seed the same numbers at the same slot,
// position and layer, however they are fed.
void feed_random(Cache& cache, const Exec& exec, const std::vector<RandomFeed>& feeds,
                 uint64_t seed = 1);

}  // namespace larder::test
