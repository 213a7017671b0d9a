// Scratch is reserved for the longest row, before the cache says how its rows part their tokens.
#include <gtest/gtest.h>

#include "tests/support/attend_problem.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

TEST(AttendScratch, ABoundOfTheLongestRowIsEnoughForAnySegments) {
  constexpr int64_t kLen = 1000, kHeads = 4, kDim = 16;
  const Shape shape({2, 2, kLen, kDim});
  std::vector<float> k = random_floats(shape.count(), 1), v = random_floats(shape.count(), 2);
  std::vector<float> q = random_floats(2 * kHeads * kDim, 3), out(q.size());
  const int32_t q_start[] = {0, 1, 2};
  const int64_t position[] = {kLen - 1, kLen - 1};
  int64_t most = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const KVFixture fixture(TensorView::contiguous(k.data(), DType::kF32, shape),
                            TensorView::contiguous(v.data(), DType::kF32, shape),
                            {.segments = 3, .seed = seed});
    AttendArgs args;
    args.q = TensorView::contiguous(q.data(), DType::kF32, {2, kHeads, kDim});
    args.out = TensorView::contiguous(out.data(), DType::kF32, {2, kHeads, kDim});
    args.batch = 2, args.q_start = q_start, args.q_position = position;
    args.kv = fixture.view();
    AttendArgs bound = args;
    bound.kv = {.num_segments = 1, .num_kv_heads = 2, .head_dim = kDim, .segment = {}};
    bound.kv.segment[0].max_len = kLen;
    int64_t sum = 0;
    for (int s = 0; s < 3; ++s) sum += args.kv.segment[s].max_len;
    most = std::max(most, sum);
    for (const Kernels* set : available_kernel_sets()) {
      for (const AttentionKind kind : {AttentionKind::kFused, AttentionKind::kEager}) {
        HostAllocator host;
        Arena arena(host);
        ThreadPool threads(2);
        const Exec exec{*set, threads, arena};
        arena.reserve(attend_scratch_bytes(exec, kind, bound));
        EXPECT_NO_THROW(attend(exec, kind, args)) << set->name << ", seed " << seed;
      }
    }
  }
  EXPECT_GT(most, 1024 + 512);  // the parts of rows do add up to more than the longest
}

}  // namespace
}  // namespace larder::test
