// Every feature of attention, in every kernel set, against a softmax in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/attend_problem.h"

namespace larder::test {
namespace {

// Outputs are averages of values of size 1, log-sum-exps are below 10; both are sums in f32 of
// scores with an error of about eps * sqrt(head_dim) * |q||k| * scale.
constexpr double kTolerance = 2e-5;

void expect_right(const AttendProblem& problem, const AttendRun& run = {}) {
  const AttendData data(problem);
  const AttendResult want = attend_in_double(data, run.layout.k_dtype, run.layout.v_dtype);
  for (const Kernels* set : available_kernel_sets()) {
    const AttendResult got = attend_with_set(*set, data, all_at_once(data), run);
    EXPECT_LE(worst_difference(got, want), kTolerance) << set->name;
  }
}

TEST(Attend, EveryLengthOfPrefillIsRight) {
  for (const int64_t n : {1, 7, 63, 64, 65, 130})
    expect_right({.rows = {{.q_len = n, .k_len = n}}});
}

TEST(Attend, EveryLengthOfDecodeIsRight) {
  for (const int64_t n : {1, 7, 63, 64, 65, 511, 512, 513, 1100})
    expect_right({.rows = {{.q_len = 1, .k_len = n, .q_first = n - 1}}}, {.threads = 2});
}

TEST(Attend, LongPrefillCrossesSpans) {
  expect_right({.rows = {{.q_len = 140, .k_len = 1100, .q_first = 960}}, .head_dim = 64},
               {.threads = 2});
}

TEST(Attend, EveryHeadSizeIsRight) {
  for (const int64_t head_dim : {1, 7, 16, 20, 24, 64, 80, 96, 128, 256, 300}) {
    SCOPED_TRACE(head_dim);
    expect_right({.rows = {{.q_len = 9, .k_len = 70, .q_first = 61}},
                  .head_dim = head_dim,
                  .scale = 1 / std::sqrt(static_cast<float>(head_dim))});
  }
}

TEST(Attend, EveryGroupingOfHeadsIsRight) {
  for (const auto& [heads, kv_heads] :
       {std::pair{6, 2}, {9, 3}, {4, 4}, {8, 1}, {1, 1}, {7, 1}, {71, 1}, {14, 2}}) {
    SCOPED_TRACE(heads);
    expect_right({.rows = {{.q_len = 5, .k_len = 70, .q_first = 65}, {.q_len = 1, .k_len = 3}},
                  .heads = heads,
                  .kv_heads = kv_heads});
  }
}

TEST(Attend, WindowEdges) {
  for (const int64_t window : {1, 2, 5, 63, 64, 65, 99, 100, 101, 4000}) {
    SCOPED_TRACE(window);
    expect_right({.rows = {{.q_len = 100, .k_len = 100}}, .window = window});
    expect_right({.rows = {{.q_len = 1, .k_len = 700, .q_first = 699}}, .window = window});
  }
}

TEST(Attend, ChunkEdges) {
  for (const int64_t chunk : {1, 2, 5, 63, 64, 65, 99, 100, 101, 512, 4000}) {
    SCOPED_TRACE(chunk);
    expect_right({.rows = {{.q_len = 100, .k_len = 100}}, .chunk = chunk});
    expect_right({.rows = {{.q_len = 1, .k_len = 700, .q_first = 699}}, .chunk = chunk});
    expect_right({.rows = {{.q_len = 20, .k_len = 1100, .q_first = 1080}}, .chunk = chunk},
                 {.threads = 2});
  }
}

// The chunk of position -1 is the one before position 0, not the one that begins there.
TEST(Attend, ChunksOfNegativePositionsAndWithoutCausality) {
  for (const int64_t chunk : {1, 3, 4, 64}) {
    SCOPED_TRACE(chunk);
    expect_right({.rows = {{.q_len = 12, .k_len = 9, .q_first = -4}}, .chunk = chunk});
    expect_right({.rows = {{.q_len = 12, .k_len = 9, .q_first = -4, .k_first = -7}},
                  .chunk = chunk,
                  .causal = false,
                  .sinks = true});
  }
}

TEST(Attend, ChunkAsLargeAsAnIntegerIsNone) {
  expect_right({.rows = {{.q_len = 3, .k_len = 5, .q_first = 2}},
                .chunk = std::numeric_limits<int64_t>::max()});
}

TEST(Attend, WindowWithoutCausality) {
  expect_right({.rows = {{.q_len = 30, .k_len = 90, .q_first = 20}}, .window = 7, .causal = false});
}

TEST(Attend, WindowAsLargeAsAnIntegerIsNone) {
  expect_right({.rows = {{.q_len = 3, .k_len = 5, .q_first = -2}},
                .window = std::numeric_limits<int64_t>::max()});
}

TEST(Attend, NotCausal) { expect_right({.rows = {{.q_len = 20, .k_len = 90}}, .causal = false}); }

TEST(Attend, QueriesBeforeTheFirstKeySeeNothing) {
  expect_right({.rows = {{.q_len = 12, .k_len = 9, .q_first = -4}}});
  expect_right({.rows = {{.q_len = 12, .k_len = 9, .q_first = -4}}, .sinks = true});
}

TEST(Attend, KeysThatDoNotStartAtPositionZero) {
  expect_right({.rows = {{.q_len = 12, .k_len = 900, .q_first = 1600, .k_first = 709}}});
}

TEST(Attend, SoftcapAndScale) {
  expect_right({.rows = {{.q_len = 40, .k_len = 80, .q_first = 40}}, .scale = 2, .softcap = 3});
}

TEST(Attend, SharpScores) {
  // Scores of size 30 have an error of 30 eps: a weight moves by some 1e-5.
  const AttendData data({.rows = {{.q_len = 40, .k_len = 80, .q_first = 40}}, .scale = 8});
  for (const Kernels* set : available_kernel_sets())
    EXPECT_LE(
        worst_difference(attend_with_set(*set, data, all_at_once(data)), attend_in_double(data)),
        2e-4)
        << set->name;
}

TEST(Attend, DenseBias) {
  expect_right({.rows = {{.q_len = 20, .k_len = 90, .q_first = 70}, {.q_len = 8, .k_len = 8}},
                .bias = BiasKind::kDense});
}

TEST(Attend, BiasThatRepeatsOverRowsAndQueries) {
  expect_right({.rows = {{.q_len = 20, .k_len = 90, .q_first = 70}, {.q_len = 8, .k_len = 8}},
                .bias = BiasKind::kByHeadAndKey});
}

TEST(Attend, KeyMask) {
  for (const double hidden : {0.1, 0.5, 0.98})
    expect_right({.rows = {{.q_len = 50, .k_len = 150, .q_first = 100}, {.q_len = 3, .k_len = 3}},
                  .hidden_keys = hidden});
}

TEST(Attend, Sinks) {
  expect_right({.rows = {{.q_len = 50, .k_len = 150, .q_first = 100}, {.q_len = 3, .k_len = 3}},
                .sinks = true});
}

TEST(Attend, EverythingTogether) {
  for (const int threads : {1, 2, 5})
    expect_right({.rows = {{.q_len = 50, .k_len = 650, .q_first = 600},
                           {.q_len = 1, .k_len = 1100, .q_first = 1099},
                           {.q_len = 3, .k_len = 3},
                           {.q_len = 0, .k_len = 4},
                           {.q_len = 7, .k_len = 77, .q_first = 70, .k_first = 3}},
                  .head_dim = 24,
                  .softcap = 5,
                  .window = 90,
                  .sinks = true,
                  .hidden_keys = 0.3,
                  .bias = BiasKind::kDense},
                 {.threads = threads});
}

TEST(Attend, StoredTypesOfKeysAndValuesMayDiffer) {
  for (const DType k : {DType::kF32, DType::kF16, DType::kBF16})
    for (const DType v : {DType::kF32, DType::kF16, DType::kBF16})
      for (const int64_t head_dim : {7, 24, 64, 80})
        expect_right({.rows = {{.q_len = 20, .k_len = 90, .q_first = 70}, {.q_len = 1, .k_len = 8}},
                      .head_dim = head_dim},
                     {.layout = {.k_dtype = k, .v_dtype = v, .block_size = 16, .segments = 2}});
}

TEST(Attend, ABatchOfNothingIsNothing) {
  expect_right({.rows = {{.q_len = 0, .k_len = 0}}});
  expect_right({.rows = {{.q_len = 2, .k_len = 0}}});
}

}  // namespace
}  // namespace larder::test
