// Attention of models that compute in bf16: a set may round q, what codes stand for, and the
// weights to bf16, where keys and values are bf16 or codes. That moves a result by the rounding of
// its weights, and everything else that holds of attention holds of it, too.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/attend_problem.h"
#include "tests/support/poisoned_key.h"
#include "tests/support/sanitized.h"

namespace larder::test {
namespace {

constexpr KVLayout kBf16{.k_dtype = DType::kBF16, .v_dtype = DType::kBF16};

AttendRun bf16_run(const KVLayout& layout = kBf16) {
  return {.layout = layout, .compute = DType::kBF16};
}

void round_to_bf16(std::vector<float>& values) {
  for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
}

// Values lie in [-1, 1] and q is rounded before, so a weight's error of 2^-9 of itself moves an
// output by at most 2^-8, twice that as weights' errors do not cancel in the denominator; the
// denominator is summed before weights are rounded.
void expect_right(const AttendProblem& problem, const AttendRun& run = bf16_run()) {
  AttendData data(problem);
  for (std::vector<float>& q : data.q) round_to_bf16(q);
  float largest = 0;
  for (const std::vector<float>& row : data.v)
    for (const float value : row) largest = std::max(largest, std::fabs(value));
  const AttendResult want = attend_in_double(data, DType::kBF16, DType::kBF16);
  for (const Kernels* set : available_kernel_sets()) {
    const AttendResult got = attend_with_set(*set, data, all_at_once(data), run);
    EXPECT_LE(worst_difference({got.out, {}}, {want.out, {}}), largest * 0x1p-8) << set->name;
    EXPECT_LE(worst_difference({{}, got.lse}, {{}, want.lse}), 2e-5) << set->name;
  }
}

TEST(AttendBf16, EveryLengthIsRight) {
  for (const int64_t n : {1, 2, 7, 63, 64, 65, 130}) {
    SCOPED_TRACE(n);
    expect_right({.rows = {{.q_len = n, .k_len = n}}, .head_dim = 32});
  }
  for (const int64_t n : {1, 2, 7, 63, 64, 65, 511, 512, 513, 1100}) {
    SCOPED_TRACE(n);
    expect_right({.rows = {{.q_len = 1, .k_len = n, .q_first = n - 1}}, .head_dim = 64},
                 {.layout = kBf16, .threads = 2, .compute = DType::kBF16});
  }
}

// Multiples of 32 take the way of bf16 dot products, the others that of f32.
TEST(AttendBf16, EveryHeadSizeIsRight) {
  for (const int64_t head_dim : {1, 16, 20, 32, 64, 80, 96, 128, 160, 256, 288}) {
    SCOPED_TRACE(head_dim);
    expect_right({.rows = {{.q_len = 9, .k_len = 70, .q_first = 61}},
                  .head_dim = head_dim,
                  .scale = 1 / std::sqrt(static_cast<float>(head_dim))});
  }
}

TEST(AttendBf16, EverythingTogether) {
  for (const int64_t window : {0, 1, 2, 5, 63, 90}) {
    if (kSanitized && window != 0 && window != 63) continue;
    SCOPED_TRACE(window);
    expect_right({.rows = {{.q_len = 50, .k_len = 650, .q_first = 600},
                           {.q_len = 1, .k_len = 1100, .q_first = 1099},
                           {.q_len = 3, .k_len = 3},
                           {.q_len = 0, .k_len = 4},
                           {.q_len = 7, .k_len = 77, .q_first = 70, .k_first = 3}},
                  .heads = 7,
                  .kv_heads = 1,
                  .head_dim = 96,
                  .softcap = 5,
                  .window = window,
                  .sinks = true,
                  .hidden_keys = 0.3,
                  .bias = BiasKind::kDense},
                 {.layout = {.k_dtype = DType::kBF16,
                             .v_dtype = DType::kBF16,
                             .block_size = 16,
                             .ring = true,
                             .segments = 3},
                  .threads = 2,
                  .compute = DType::kBF16});
  }
}

AttendProblem mixed_problem(int64_t head_dim, uint64_t seed) {
  const int64_t queries = kSanitized ? 12 : 37;
  return {.rows = {{.q_len = queries, .k_len = 1100, .q_first = 1100 - queries},
                   {.q_len = 1, .k_len = 1537, .q_first = 1536},
                   {.q_len = 9, .k_len = 9},
                   {.q_len = 3, .k_len = 640, .q_first = 637}},
          .head_dim = head_dim,
          .softcap = 8,
          .sinks = true,
          .seed = seed};
}

// Company, pieces, threads: no bit differs. Layouts that hold the same: nor there.
void expect_same_everywhere(const AttendData& data, const AttendRun& run) {
  for (const Kernels* set : available_kernel_sets()) {
    SCOPED_TRACE(set->name);
    const AttendResult want = attend_with_set(*set, data, all_at_once(data), run);
    AttendRun threaded = run;
    threaded.threads = 3;
    EXPECT_EQ(first_difference(want, attend_with_set(*set, data, all_at_once(data), threaded)), "");
    EXPECT_EQ(first_difference(want, attend_with_set(*set, data, rows_alone(data), run)), "");
    for (const int64_t queries : {1, 5})
      EXPECT_EQ(first_difference(want, attend_with_set(*set, data, chunks(data, queries), run)),
                "");
  }
}

TEST(AttendBf16, CompanyAndPiecesShowInNoBit) {
  for (const int64_t head_dim : {32, 64, 96}) {
    if (kSanitized && head_dim == 64) continue;
    SCOPED_TRACE(head_dim);
    AttendProblem problem = mixed_problem(head_dim, 3);
    expect_same_everywhere(AttendData(problem), bf16_run());
    problem.window = 75, problem.hidden_keys = 0.2;
    expect_same_everywhere(AttendData(problem), bf16_run());
  }
}

TEST(AttendBf16, EveryLayoutIsTheSame) {
  const AttendData data(mixed_problem(64, 4));
  for (const Kernels* set : available_kernel_sets()) {
    SCOPED_TRACE(set->name);
    const AttendResult want = attend_with_set(*set, data, all_at_once(data), bf16_run());
    for (const int32_t block_size : {0, 1, 16, 48}) {
      for (const int32_t segments : {1, 3}) {
        for (const bool ring : {false, true}) {
          KVLayout layout = kBf16;
          layout.block_size = block_size, layout.segments = segments, layout.ring = ring;
          layout.seed = 9;
          EXPECT_EQ(first_difference(
                        want, attend_with_set(*set, data, all_at_once(data), bf16_run(layout))),
                    "");
        }
      }
    }
  }
}

// Keys by token or by channel, exact tokens behind; 3 bits are widened before a set sees them. What
// the same codes give in other company the tests of the engine say.
TEST(AttendBf16, CodesAreAttendedToAsWhatTheyStandFor) {
  const AttendData data({.rows = {{.q_len = 9, .k_len = 200, .q_first = 191},
                                  {.q_len = 1, .k_len = 65, .q_first = 64}},
                         .head_dim = 64,
                         .scale = 0.125f,
                         .seed = 5});
  for (const int32_t bits : {8, 4, 3, 2}) {
    for (const bool by_channel : {false, true}) {
      SCOPED_TRACE(str(bits, " bits, ", by_channel ? "by channel" : "by token"));
      const KVQuant v{.bits = bits, .form = KVForm::kSymmetric, .channel_group = 64};
      AttendRun run = bf16_run();
      run.layout.k_quant = by_channel ? KVQuant{.bits = bits, .token_group = 64} : v;
      run.layout.v_quant = v;
      run.layout.block_size = 64, run.layout.segments = 2;
      AttendRun threaded = run, exact = run;
      threaded.threads = 3;
      exact.widened = true, exact.compute = DType::kF32;
      for (const Kernels* set : available_kernel_sets()) {
        const AttendResult got = attend_with_set(*set, data, all_at_once(data), run);
        EXPECT_EQ(first_difference(got, attend_with_set(*set, data, all_at_once(data), threaded)),
                  "")
            << set->name;
        // Scores are below 8 and both factors of their products are rounded to 2^-9 of themselves.
        const AttendResult want = attend_with_set(*set, data, all_at_once(data), exact);
        EXPECT_LE(worst_difference({got.out, {}}, {want.out, {}}), 0.05) << set->name;
      }
    }
  }
}

TEST(AttendBf16, UnusedSlotsMayHoldAnything) {
  const AttendData data(mixed_problem(64, 6));
  for (const Kernels* set : available_kernel_sets()) {
    KVLayout layout = kBf16;
    layout.block_size = 16, layout.filler = 0;
    const AttendResult zeros = attend_with_set(*set, data, all_at_once(data), bf16_run(layout));
    for (const float filler :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      layout.filler = filler;
      EXPECT_EQ(
          first_difference(zeros, attend_with_set(*set, data, all_at_once(data), bf16_run(layout))),
          "")
          << set->name;
    }
  }
}

// Of a pair of keys a row may see one: the other, though it is not a number, must not reach it.
TEST(AttendBf16, APoisonedKeyReachesThoseWhoSeeItOnly) {
  for (const int64_t window : {0, 6}) {
    const AttendData data({.rows = {{.q_len = 70, .k_len = 70}},
                           .heads = 4,
                           .kv_heads = 4,
                           .head_dim = 64,
                           .window = window});
    for (const Kernels* set : available_kernel_sets()) {
      for (const Calls& calls : {all_at_once(data), chunks(data, 5)}) {
        const AttendResult clean = attend_with_set(*set, data, calls, bf16_run());
        for (const int64_t key : {0, 5, 20, 63, 64, 69}) {
          AttendData dirty = data;
          poison(dirty, 0, key, std::numeric_limits<float>::quiet_NaN());
          SCOPED_TRACE(set->name);
          expect_poison_contained(data, key, clean,
                                  attend_with_set(*set, dirty, calls, bf16_run()));
        }
      }
    }
  }
}

}  // namespace
}  // namespace larder::test
