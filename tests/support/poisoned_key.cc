#include "tests/support/poisoned_key.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace larder::test {

void poison(AttendData& data, size_t row, int64_t key, float value) {
  const AttendProblem& p = data.problem;
  const int64_t k_len = p.rows[row].k_len;
  for (int64_t head = 0; head < p.kv_heads; ++head)
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const auto at = static_cast<size_t>((head * k_len + key) * p.head_dim + d);
      data.k[row][at] = data.v[row][at] = value;
    }
}

void expect_poison_contained(const AttendData& data, int64_t key, const AttendResult& clean,
                             const AttendResult& got) {
  const int64_t width = data.problem.heads * data.problem.head_dim;
  for (size_t i = 0; i < got.out[0].size(); ++i) {
    const int64_t query = static_cast<int64_t>(i) / width;
    if (data.sees(0, query, key)) {
      ASSERT_TRUE(std::isnan(got.out[0][i])) << "key " << key << ", query " << query;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got.out[0][i]), std::bit_cast<uint32_t>(clean.out[0][i]))
          << "key " << key << ", query " << query;
    }
  }
}

}  // namespace larder::test
