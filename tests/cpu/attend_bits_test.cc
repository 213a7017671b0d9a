// A query's result is the same bytes in any company, layout and number of threads, and whatever
// lies in slots and keys that it does not see.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/support/attend_problem.h"
#include "tests/support/poisoned_key.h"
#include "tests/support/sanitized.h"

namespace larder::test {
namespace {

// Rows of other lengths and needs, each long enough to cross blocks and spans.
AttendProblem mixed_problem(uint64_t seed = 3) {
  // With three heads a key head, 37 queries are more than one tile of 96 rows. A sanitizer looks at
  // less, more closely.
  const int64_t queries = kSanitized ? 12 : 37;
  return {.rows = {{.q_len = queries, .k_len = 1100, .q_first = 1100 - queries},
                   {.q_len = 1, .k_len = 1537, .q_first = 1536},
                   {.q_len = 9, .k_len = 9},
                   {.q_len = 3, .k_len = 640, .q_first = 637}},
          .head_dim = 24,
          .softcap = 8,
          .sinks = true,
          .seed = seed};
}

std::vector<AttendProblem> problems() {
  AttendProblem window = mixed_problem(4), masked = mixed_problem(5), wide = mixed_problem(6);
  AttendProblem chunk = mixed_problem(7);
  chunk.chunk = 100;
  window.window = 75, window.head_dim = 64;
  masked.hidden_keys = 0.2;
  masked.bias = BiasKind::kDense;
  wide.head_dim = 80, wide.heads = 7, wide.kv_heads = 1, wide.sinks = false, wide.softcap = 0;
  if (kSanitized) return {window, masked};
  return {mixed_problem(), window, masked, wide, chunk};
}

void for_each_set_and_problem(const std::function<void(const Kernels&, const AttendData&)>& body) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const AttendProblem& problem : problems()) {
      SCOPED_TRACE(str(set->name, ", seed ", problem.seed));
      body(*set, AttendData(problem));
    }
  }
}

TEST(AttendBits, AloneIsAsInABatch) {
  for_each_set_and_problem([](const Kernels& set, const AttendData& data) {
    const AttendResult together = attend_with_set(set, data, all_at_once(data));
    EXPECT_EQ(first_difference(together, attend_with_set(set, data, rows_alone(data))), "");
  });
}

TEST(AttendBits, EveryChunkingOfAPrefillIsTheSame) {
  for_each_set_and_problem([](const Kernels& set, const AttendData& data) {
    const AttendResult whole = attend_with_set(set, data, all_at_once(data));
    for (const int64_t queries : {1, 7, 8, 9, 33, 64}) {
      SCOPED_TRACE(queries);
      for (const bool growing : {false, true})
        EXPECT_EQ(first_difference(whole, attend_with_set(set, data, chunks(data, queries),
                                                          {.growing = growing})),
                  "");
    }
  });
}

TEST(AttendBits, AnyNumberOfThreadsIsTheSame) {
  for_each_set_and_problem([](const Kernels& set, const AttendData& data) {
    for (const Calls& calls : {all_at_once(data), rows_alone(data), chunks(data, 3)}) {
      const AttendResult one = attend_with_set(set, data, calls);
      for (const int threads : {2, 5})
        EXPECT_EQ(first_difference(one, attend_with_set(set, data, calls, {.threads = threads})),
                  "");
    }
  });
}

// Every page size with every number of segments, as a ring and not; each problem takes a fourth of
// them, and a sanitizer one in 13.
TEST(AttendBits, EveryLayoutIsTheSame) {
  constexpr uint64_t kPart = kSanitized ? 13 : 4;
  for_each_set_and_problem([](const Kernels& set, const AttendData& data) {
    uint64_t turn = 0;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      KVLayout layout{.k_dtype = dtype, .v_dtype = dtype};
      const AttendResult plain = attend_with_set(set, data, all_at_once(data), {layout});
      for (const int32_t block_size : {0, 1, 4, 16, 64, 100}) {
        for (const int32_t shape : {1, 2, 3, 4, 5, 6}) {
          layout.block_size = block_size;
          layout.ring = shape > 3, layout.segments = 1 + shape % 3;
          layout.heads_inside = !layout.heads_inside, ++layout.seed;
          if (++turn % kPart != data.problem.seed % kPart) continue;
          SCOPED_TRACE(str("pages of ", block_size, layout.ring ? " in a ring" : "", ", segments ",
                           layout.segments));
          EXPECT_EQ(
              first_difference(plain, attend_with_set(set, data, all_at_once(data), {layout})), "");
        }
        ++turn;
      }
    }
  });
}

TEST(AttendBits, ManySeamsAreTheSame) {
  AttendProblem problem = mixed_problem();
  problem.rows = {{.q_len = 5, .k_len = 200, .q_first = 195}};
  const AttendData data(problem);
  for (const Kernels* set : available_kernel_sets()) {
    const AttendResult plain = attend_with_set(*set, data, all_at_once(data));
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const KVLayout layout{.block_size = static_cast<int32_t>(seed % 5 * 7),
                            .ring = seed % 2 == 0,
                            .segments = static_cast<int32_t>(2 + seed % 2),
                            .seed = seed};
      EXPECT_EQ(first_difference(plain, attend_with_set(*set, data, all_at_once(data), {layout})),
                "")
          << set->name << ", seed " << seed;
    }
  }
}

TEST(AttendBits, UnusedSlotsMayHoldAnything) {
  for_each_set_and_problem([](const Kernels& set, const AttendData& data) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      if (dtype != DType::kF16 && data.problem.seed % 2 != 0) continue;
      KVLayout layout{.k_dtype = dtype, .v_dtype = dtype, .block_size = 16, .filler = 0};
      const AttendResult zeros = attend_with_set(set, data, all_at_once(data), {layout});
      for (const float filler :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        layout.filler = filler;
        EXPECT_EQ(first_difference(zeros, attend_with_set(set, data, all_at_once(data), {layout})),
                  "");
      }
    }
  });
}

TEST(AttendBits, HiddenKeysMayHoldAnything) {
  for_each_set_and_problem([](const Kernels& set, const AttendData& data) {
    const AttendResult clean = attend_with_set(set, data, all_at_once(data));
    for (const float value : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), -1e30f}) {
      AttendData dirty = data;
      for (size_t row = 0; row < data.problem.rows.size(); ++row) {
        const AttendRow& shape = data.problem.rows[row];
        for (int64_t key = 0; key < shape.k_len; ++key) {
          bool seen = false;
          for (int64_t query = 0; query < shape.q_len; ++query)
            seen = seen || data.sees(row, query, shape.k_first + key);
          if (!seen) poison(dirty, row, key, value);
        }
      }
      EXPECT_EQ(first_difference(clean, attend_with_set(set, dirty, all_at_once(dirty))), "");
    }
  });
}

// A poisoned key that some queries of a tile see and others do not; whole and in pieces of a few
// rows, which read V where it lies.
TEST(AttendBits, APoisonedKeyReachesThoseWhoSeeItOnly) {
  for (const Kernels* set : available_kernel_sets()) {
    SCOPED_TRACE(set->name);
    for (const int64_t window : {0, 6}) {
      for (const int64_t head_dim : {16, 64}) {
        const AttendData data({.rows = {{.q_len = 70, .k_len = 70}},
                               .heads = 4,
                               .kv_heads = 4,
                               .head_dim = head_dim,
                               .window = window});
        for (const Calls& calls : {all_at_once(data), chunks(data, 5)}) {
          const AttendResult clean = attend_with_set(*set, data, calls);
          for (const int64_t key : {0, 5, 20, 63, 64, 69}) {
            AttendData dirty = data;
            poison(dirty, 0, key, std::numeric_limits<float>::quiet_NaN());
            expect_poison_contained(data, key, clean, attend_with_set(*set, dirty, calls));
          }
        }
      }
    }
  }
}

TEST(AttendBits, AScoreOfMinusInfinityHidesItsKey) {
  for (const Kernels* set : available_kernel_sets()) {
    AttendData masked({.rows = {{.q_len = 6, .k_len = 150, .q_first = 144}}, .hidden_keys = 0.4});
    AttendData biased({.rows = masked.problem.rows, .bias = BiasKind::kByHeadAndKey});
    for (size_t i = 0; i < 64; ++i) masked.key_mask[i] = 0;  // a whole block
    for (size_t i = 0; i < biased.bias.size(); ++i)
      biased.bias[i] = masked.key_mask[i % 150] != 0 ? 0 : -std::numeric_limits<float>::infinity();
    EXPECT_EQ(first_difference(attend_with_set(*set, masked, all_at_once(masked)),
                               attend_with_set(*set, biased, all_at_once(biased))),
              "")
        << set->name;
  }
}

}  // namespace
}  // namespace larder::test
