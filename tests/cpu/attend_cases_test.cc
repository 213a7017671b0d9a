// Faults that other runtimes of this kind have had, on attention itself, in every kernel set.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "larder/cpu/kv_tile.h"
#include "tests/support/attend_problem.h"

namespace larder::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Keys of zeros, and the value of key j is 1 in channel j: an output shows which keys were seen.
AttendData numbered_keys(AttendProblem problem) {
  for (const AttendRow& row : problem.rows)
    problem.head_dim = std::max(problem.head_dim, row.k_len);
  AttendData data(problem);
  for (size_t row = 0; row < problem.rows.size(); ++row) {
    const int64_t k_len = problem.rows[row].k_len;
    std::fill(data.k[row].begin(), data.k[row].end(), 0.0f);
    std::fill(data.v[row].begin(), data.v[row].end(), 0.0f);
    for (int64_t i = 0; i < problem.kv_heads * k_len; ++i)
      data.v[row][static_cast<size_t>(i * problem.head_dim + i % k_len)] = 1;
  }
  return data;
}

// The keys that head 0 of a query gave weight to.
std::vector<int64_t> seen_keys(const AttendData& data, const AttendResult& result, size_t row,
                               int64_t query) {
  std::vector<int64_t> keys;
  const int64_t width = data.problem.heads * data.problem.head_dim;
  for (int64_t key = 0; key < data.problem.rows[row].k_len; ++key)
    if (result.out[row][static_cast<size_t>(query * width + key)] != 0) keys.push_back(key);
  return keys;
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = std::max<int64_t>(0, begin); key < end; ++key) keys.push_back(key);
  return keys;
}

TEST(Case01, AWindowOfFourSeesTheQueryAndThreeBefore) {
  const AttendData data = numbered_keys({.rows = {{.q_len = 10, .k_len = 10}}, .window = 4});
  const std::vector<Calls> splits = {
      {{{0, 0, 10}}},
      chunks(data, 1),
      {{{0, 0, 3}}, {{0, 3, 4}}, {{0, 4, 5}}, {{0, 5, 8}}, {{0, 8, 9}}, {{0, 9, 10}}},
      {{{0, 0, 4}}, {{0, 4, 10}}}};
  for (const Kernels* set : available_kernel_sets()) {
    for (const Calls& calls : splits) {
      for (const bool growing : {false, true}) {
        const AttendResult got = attend_with_set(*set, data, calls, {.growing = growing});
        for (int64_t i = 0; i < 10; ++i)
          EXPECT_EQ(seen_keys(data, got, 0, i), range(i - 3, i + 1)) << set->name << " query " << i;
      }
    }
  }
}

TEST(Case14, SlotsNeverWrittenMayHoldAnything) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const int32_t block_size : {16, 4}) {
      for (int64_t n = 1; n <= 6; ++n) {
        const AttendData data({.rows = {{.q_len = 1, .k_len = n, .q_first = n - 1},
                                        {.q_len = 1, .k_len = 1},
                                        {.q_len = 1, .k_len = 3, .q_first = 2}}});
        AttendRun run{.layout = {.block_size = block_size, .filler = 0}};
        const AttendResult zeros = attend_with_set(*set, data, all_at_once(data), run);
        for (const float filler : {kNan, kInf, -kInf}) {
          run.layout.filler = filler;
          EXPECT_EQ(first_difference(zeros, attend_with_set(*set, data, all_at_once(data), run)),
                    "")
              << set->name;
        }
      }
    }
  }
}

TEST(Case19, QueriesAreTheLastTokensOfTheKeys) {
  for (const auto& [q_len, k_len] :
       {std::pair{2, 5}, {1, 5}, {5, 5}, {3, 2}, {70, 75}, {75, 70}, {9, 130}, {130, 65}}) {
    const AttendData data =
        numbered_keys({.rows = {{.q_len = q_len, .k_len = k_len, .q_first = k_len - q_len}}});
    for (const Kernels* set : available_kernel_sets()) {
      const AttendResult got = attend_with_set(*set, data, all_at_once(data));
      for (int64_t i = 0; i < q_len; ++i)
        EXPECT_EQ(seen_keys(data, got, 0, i), range(0, std::max(0L, k_len - q_len + i + 1)))
            << set->name << ", q " << q_len << ", k " << k_len << ", query " << i;
    }
  }
}

// Queries 0 and 1 of row 0 come before the first key; row 1's keys are all masked, row 2's lie out
// of its window.
TEST(Case20, RowsThatSeeNothingGiveZerosAndDisturbNobody) {
  AttendProblem problem{.rows = {{.q_len = 6, .k_len = 4, .q_first = -2},
                                 {.q_len = 3, .k_len = 3},
                                 {.q_len = 1, .k_len = 70, .q_first = 99}},
                        .window = 20,
                        .hidden_keys = 1e-9};
  AttendData data(problem);
  for (int64_t key = 0; key < 3; ++key) data.key_mask[static_cast<size_t>(data.max_k + key)] = 0;
  const Calls only_seeing = {{{0, 2, 6}}};
  for (const Kernels* set : available_kernel_sets()) {
    for (const int threads : {1, 2}) {
      const AttendResult got = attend_with_set(*set, data, all_at_once(data), {.threads = threads});
      const AttendResult alone = attend_with_set(*set, data, only_seeing);
      const size_t blind = 2 * 6;  // queries times heads of row 0
      for (size_t i = 0; i < got.out[0].size(); ++i) {
        if (i < blind * 16) {
          EXPECT_EQ(got.out[0][i], 0);
        } else {
          EXPECT_EQ(std::memcmp(&got.out[0][i], &alone.out[0][i], sizeof(float)), 0);
        }
      }
      for (size_t i = 0; i < blind; ++i) EXPECT_EQ(got.lse[0][i], -kInf);
      for (const size_t row : {size_t{1}, size_t{2}}) {
        for (const float x : got.out[row]) EXPECT_EQ(x, 0) << set->name;
        for (const float x : got.lse[row]) EXPECT_EQ(x, -kInf) << set->name;
      }
    }
  }
}

TEST(Case20, WithASinkTheLogSumExpIsTheSink) {
  AttendData data({.rows = {{.q_len = 4, .k_len = 2, .q_first = -3}}, .sinks = true});
  data.sinks[5] = -kInf;  // no sink at all
  for (const Kernels* set : available_kernel_sets()) {
    const AttendResult got = attend_with_set(*set, data, all_at_once(data));
    for (size_t i = 0; i < 3 * 6; ++i) EXPECT_EQ(got.lse[0][i], data.sinks[i % 6]) << set->name;
    for (size_t i = 0; i < 3 * 6 * 16; ++i) EXPECT_EQ(got.out[0][i], 0) << set->name;
  }
}

TEST(Case21, ConsecutiveQueryHeadsShareAKeyHead) {
  for (const auto& [heads, kv_heads] : {std::pair{6, 2}, {6, 1}, {6, 6}, {9, 3}}) {
    AttendData data(
        {.rows = {{.q_len = 4, .k_len = 9, .q_first = 5}}, .heads = heads, .kv_heads = kv_heads});
    for (size_t i = 0; i < data.v[0].size(); ++i)
      data.v[0][i] = static_cast<float>(1 + i / (9 * 16));  // the key head, from 1
    for (const Kernels* set : available_kernel_sets()) {
      const AttendResult got = attend_with_set(*set, data, all_at_once(data));
      for (size_t i = 0; i < got.out[0].size(); ++i) {
        const auto head = static_cast<int>(i / 16) % heads;
        EXPECT_NEAR(got.out[0][i], 1 + head / (heads / kv_heads), 1e-6) << set->name;
      }
    }
  }
}

// Scale 256^-0.5 on head size 8, scores of size 200 capped at 50, masked keys at weight 0 after it.
TEST(Case22, ScaleThenCapThenMask) {
  AttendProblem problem{.rows = {{.q_len = 10, .k_len = 10}},
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 8,
                        .scale = 1.0f / 16,
                        .softcap = 50,
                        .window = 4};
  AttendData data(problem);
  for (float& q : data.q[0]) q *= 1000;
  const AttendResult want = attend_in_double(data);
  AttendData uncapped = data;
  uncapped.problem.softcap = 0;
  for (const Kernels* set : available_kernel_sets()) {
    const AttendResult got = attend_with_set(*set, data, all_at_once(data));
    EXPECT_LE(worst_difference(got, want), 1e-4) << set->name;
    EXPECT_GT(worst_difference(attend_with_set(*set, uncapped, all_at_once(data)), want), 1);
    const AttendData numbered = numbered_keys(problem);
    const AttendResult sight = attend_with_set(*set, numbered, all_at_once(numbered));
    for (int64_t i = 0; i < 10; ++i)
      EXPECT_EQ(seen_keys(numbered, sight, 0, i), range(i - 3, i + 1)) << set->name;
  }
}

TEST(Case25, TokenOffsetsAreExactIn64Bits) {
  // Block 131072 of 16 tokens x 8 heads x 128 one-byte elements begins at 2^31.
  std::vector<int64_t> table(131073);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int64_t>(i) * 16 * 8 * 128;
  KVSegment segment;
  segment.block_table = table.data();
  segment.block_size = 16;
  segment.table_stride = 131073;
  KVSide side{.data = 0, .head_stride = 128, .token_stride = 8 * 128};
  EXPECT_EQ(cpu::token_address(segment, side, 0, 0, 131072LL * 16), uintptr_t{2147483648});
  EXPECT_EQ(cpu::token_address(segment, side, 0, 7, 131072LL * 16 + 15),
            uintptr_t{2147483648} + 15 * 1024 + 7 * 128);
  // A head, or a token, 2^40 bytes from the one before.
  side.head_stride = side.token_stride = int64_t{1} << 40;
  EXPECT_EQ(cpu::token_address(segment, side, 0, 3, 2), uintptr_t{5} << 40);
}

// One query of 16 channels at position 19.
std::vector<float> attend_one_token(const Kernels& set, const KVView& kv, std::vector<float> q) {
  ThreadPool threads(1);
  HostAllocator host;
  Arena arena(host);
  std::vector<float> out(q.size());
  const int32_t q_start[2] = {0, 1};
  const int64_t position = 19;
  AttendArgs args;
  args.q = TensorView::contiguous(q.data(), DType::kF32, {1, 1, 16});
  args.out = TensorView::contiguous(out.data(), DType::kF32, {1, 1, 16});
  args.batch = 1, args.q_start = q_start, args.q_position = &position;
  args.kv = kv;
  arena.reserve(set.attend_scratch(args, 1));
  set.attend(Exec{set, threads, arena}, args);
  return out;
}

TEST(Case25, KeysMoreThanFourGibibytesApart) {
  constexpr size_t kBytes = size_t{5} << 30, kPage = 16 * 16 * sizeof(float);
  void* mapping = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) GTEST_SKIP() << "no 5 GiB of address space";
  AttendData data({.rows = {{.q_len = 1, .k_len = 20, .q_first = 19}}, .heads = 1, .kv_heads = 1});
  const Shape shape({1, 1, 20, 16});
  const KVFixture near_fixture(TensorView::contiguous(data.k[0].data(), DType::kF32, shape),
                               TensorView::contiguous(data.v[0].data(), DType::kF32, shape), {});
  // The first 16 tokens' pages at the start, the others' at the end.
  const int64_t table[2] = {0, static_cast<int64_t>(kBytes - 2 * kPage)}, first = 0;
  const int32_t begin = 0, len = 20;
  auto* base = static_cast<std::byte*>(mapping);
  for (size_t t = 0; t < 20; ++t) {
    std::byte* at = base + table[t / 16] + t % 16 * 64;
    std::memcpy(at, &data.k[0][t * 16], 64);
    std::memcpy(at + kPage, &data.v[0][t * 16], 64);
  }
  KVView far = near_fixture.view();
  KVSegment& segment = far.segment[0];
  segment.k.data = reinterpret_cast<uintptr_t>(base);
  segment.v.data = reinterpret_cast<uintptr_t>(base + kPage);
  segment.k.token_stride = segment.v.token_stride = 64;
  segment.block_table = table, segment.table_stride = 2, segment.block_size = 16;
  segment.first_position = &first, segment.begin = &begin, segment.len = &len;
  for (const Kernels* set : available_kernel_sets())
    EXPECT_EQ(attend_one_token(*set, near_fixture.view(), data.q[0]),
              attend_one_token(*set, far, data.q[0]))
        << set->name;
  munmap(mapping, kBytes);
}

}  // namespace
}  // namespace larder::test
