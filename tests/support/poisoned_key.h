// A key that is not a number, and whom its results may reach. Needs GoogleTest.
#pragma once

#include <cstdint>

#include "tests/support/attend_problem.h"

namespace larder::test {

// Overwrites K and V of one key in all heads.
void poison(AttendData& data, size_t row, int64_t key, float value);

// Of row 0: every result of `got` but those of queries that see the key has the bytes of `clean`;
// theirs are NaN.
void expect_poison_contained(const AttendData& data, int64_t key, const AttendResult& clean,
                             const AttendResult& got);

}  // namespace larder::test
