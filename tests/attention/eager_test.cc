// Eager attention is the reference of the fused one, so it is itself held against softmax in
// double.
#include <gtest/gtest.h>

#include "tests/support/attend_problem.h"

namespace larder::test {
namespace {

// Scores are sums of head_dim products of numbers about 1, in f32: an error of about head_dim *
// 2^-24 each, and outputs are means of numbers about 1.
constexpr double kBound = 2e-5;

AttendResult eager(const AttendData& data, const Calls& calls, AttendRun run = {}) {
  run.kind = AttentionKind::kEager;
  return attend_with_set(choose_kernels(), data, calls, run);
}

std::vector<AttendProblem> problems() {
  const std::vector<AttendRow> rows = {{.q_len = 7, .k_len = 7},
                                       {.q_len = 1, .k_len = 65, .q_first = 64},
                                       {.q_len = 3, .k_len = 130, .q_first = 127}};
  std::vector<AttendProblem> all;
  all.push_back({.rows = rows});
  all.push_back({.rows = rows, .heads = 7, .kv_heads = 1, .head_dim = 20, .causal = false});
  all.push_back({.rows = rows, .window = 1});
  all.push_back({.rows = rows, .chunk = 50});
  all.push_back({.rows = {{.q_len = 9, .k_len = 8, .q_first = -5, .k_first = -6}},
                 .chunk = 4,
                 .causal = false,
                 .sinks = true});
  all.push_back({.rows = rows, .softcap = 3, .window = 64, .sinks = true});
  all.push_back({.rows = rows, .hidden_keys = 0.4, .bias = BiasKind::kDense});
  all.push_back({.rows = rows, .bias = BiasKind::kByHeadAndKey});
  all.push_back(
      {.rows = {{.q_len = 3, .k_len = 2, .q_first = -1}, {.q_len = 2, .k_len = 0}}, .sinks = true});
  all.push_back({.rows = {{.q_len = 3, .k_len = 2, .q_first = -1}}});
  return all;
}

TEST(EagerAttention, IsSoftmaxInDoubleWithEveryFeature) {
  int number = 0;
  for (const AttendProblem& problem : problems()) {
    const AttendData data(problem);
    EXPECT_LT(worst_difference(eager(data, all_at_once(data)), attend_in_double(data)), kBound)
        << number;
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const AttendRun run{.layout = {.k_dtype = dtype, .v_dtype = dtype}};
      EXPECT_LT(worst_difference(eager(data, all_at_once(data), run),
                                 attend_in_double(data, dtype, dtype)),
                kBound)
          << number;
    }
    ++number;
  }
}

// Case 20: a row that sees nothing gives zeros and a log-sum-exp of -inf, or of the sink.
TEST(Case20, ARowThatSeesNothingGivesZeros) {
  const AttendData data({.rows = {{.q_len = 3, .k_len = 2, .q_first = -1}}});
  const AttendResult got = eager(data, all_at_once(data));
  for (int64_t i = 0; i < data.problem.heads * data.problem.head_dim; ++i)
    EXPECT_EQ(got.out[0][static_cast<size_t>(i)], 0.0f);
  for (int64_t h = 0; h < data.problem.heads; ++h)
    EXPECT_EQ(got.lse[0][static_cast<size_t>(h)], -std::numeric_limits<float>::infinity());
}

TEST(EagerAttention, GivesTheSameBitsInAnyCompanyChunkingLayoutAndThreads) {
  for (const AttendProblem& problem : problems()) {
    const AttendData data(problem);
    const AttendResult expected = eager(data, all_at_once(data));
    const auto same = [&](const AttendResult& got) {
      EXPECT_TRUE(same_bits(got, expected)) << first_difference(got, expected);
    };
    same(eager(data, rows_alone(data)));
    same(eager(data, chunks(data, 1)));
    if (problem.causal) same(eager(data, chunks(data, 2), {.growing = true}));
    same(eager(data, all_at_once(data), {.threads = 3}));
    for (const int32_t block_size : {1, 16, 100})
      same(eager(data, all_at_once(data), {.layout = {.block_size = block_size}}));
    same(eager(data, all_at_once(data), {.layout = {.ring = true}}));
    same(eager(data, all_at_once(data), {.layout = {.segments = 3}}));
  }
}

TEST(Attention, ListsEveryReasonAtOnce) {
  AttendArgs args;
  args.q = args.out = TensorView::contiguous(nullptr, DType::kF32, {1, 7, 16});
  args.kv.num_kv_heads = 2;
  args.kv.head_dim = 8;
  args.softcap = -1;
  args.window = -5;
  args.chunk = -3;
  args.kv.num_segments = 1;
  args.kv.segment[0].k.quant.bits = 5;
  const std::string text = join(attend_problems(args), "; ");
  for (const char* part : {"num_heads 7", "num_kv_heads 2", "head_dim 16", "softcap -1",
                           "window -5", "chunk -3", "1, 2, 3, 4 or 8 bits"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(Attention, KnowsItsKindsByName) {
  EXPECT_EQ(attention_kind("eager"), AttentionKind::kEager);
  EXPECT_EQ(attention_kind("fused"), AttentionKind::kFused);
  EXPECT_THROW(attention_kind("flash"), Error);
}

}  // namespace
}  // namespace larder::test
