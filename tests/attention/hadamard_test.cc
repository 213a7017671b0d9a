// A cache may store keys turned by the Hadamard matrix; attend() then turns the queries alike.
#include "larder/tensor/hadamard.h"

#include <gtest/gtest.h>

#include "tests/support/attend_problem.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

TEST(Hadamard, IsItsOwnInverseAndKeepsDotProducts) {
  for (const int64_t dim : {1, 2, 64, 128}) {
    const std::vector<float> a = random_floats(3 * dim, 1), b = random_floats(3 * dim, 2);
    std::vector<float> turned_a = a, turned_b = b;
    hadamard(turned_a.data(), 3, dim);
    hadamard(turned_b.data(), 3, dim);
    for (int64_t row = 0; row < 3; ++row) {
      double dot = 0, turned_dot = 0;
      for (int64_t d = row * dim; d < (row + 1) * dim; ++d) {
        const auto i = static_cast<size_t>(d);
        dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
        turned_dot += static_cast<double>(turned_a[i]) * static_cast<double>(turned_b[i]);
      }
      // 128 products of numbers about 1, each turned with 7 additions in f32.
      EXPECT_NEAR(dot, turned_dot, 1e-4) << dim;
    }
    hadamard(turned_a.data(), 3, dim);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], turned_a[i], 1e-5) << dim;
  }
}

AttendData data_of(int64_t head_dim) {
  return AttendData({.rows = {{.q_len = 40, .k_len = 90, .q_first = 50}, {.q_len = 1, .k_len = 9}},
                     .head_dim = head_dim});
}

// The bound of the tests without: turning adds log2(head_dim) roundings to numbers about 1.
TEST(Hadamard, TurnedKeysGiveWhatKeysGave) {
  for (const int64_t head_dim : {16, 64, 128}) {
    const AttendData data = data_of(head_dim);
    for (const AttentionKind kind : {AttentionKind::kFused, AttentionKind::kEager}) {
      const AttendRun run{.layout = {.hadamard = true}, .threads = 2, .kind = kind};
      for (const Kernels* set : available_kernel_sets())
        EXPECT_LE(worst_difference(attend_with_set(*set, data, all_at_once(data), run),
                                   attend_in_double(data)),
                  5e-5)
            << set->name << " " << head_dim;
    }
  }
}

TEST(Hadamard, QueriesTurnTheSameInAnyCompany) {
  AttendProblem problem = data_of(64).problem;
  problem.heads = 16, problem.rows[0] = {.q_len = 70, .k_len = 70};  // enough for threads
  const AttendData data(problem);
  const AttendRun run{.layout = {.hadamard = true}};
  const AttendResult one = attend_with_set(choose_kernels(), data, all_at_once(data), run);
  AttendRun threads = run;
  threads.threads = 3;
  for (const Calls& calls : {all_at_once(data), chunks(data, 1), rows_alone(data)})
    EXPECT_EQ(first_difference(one, attend_with_set(choose_kernels(), data, calls, threads)), "");
}

TEST(Hadamard, AHeadThatIsNoPowerOfTwoIsRefused) {
  AttendArgs args;
  args.q = args.out = TensorView::contiguous(nullptr, DType::kF32, {1, 2, 80});
  args.kv.num_kv_heads = 2, args.kv.head_dim = 80, args.kv.hadamard = true;
  EXPECT_EQ(join(attend_problems(args), "; "),
            "head_dim 80 must be a power of two for a Hadamard rotation");
}

}  // namespace
}  // namespace larder::test
