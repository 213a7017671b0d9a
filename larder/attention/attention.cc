#include "larder/attention/attention.h"

#include <bit>
#include <cmath>

#include "larder/base/error.h"
#include "larder/tensor/hadamard.h"
#include "larder/tensor/kv_dequant.h"

namespace larder {
namespace {

// Below this many elements turning q takes less time than waking a thread.
constexpr int64_t kElementsWorthThreads = int64_t{16} * 1024;

const char* view_problem(const KVView& kv) {
  for (int32_t s = 0; s < kv.num_segments; ++s) {
    for (const KVSide* side : {&kv.segment[s].k, &kv.segment[s].v}) {
      if (side->quant.bits == 0) continue;
      if (const char* problem = quant_problem(side->quant)) return problem;
      if (side->quant.order == KVOrder::kAligned &&
          kv.segment[s].block_size % side->quant.token_group != 0)
        return "a block must hold whole groups of tokens";
    }
  }
  return nullptr;
}

// Each head of each query by itself, in place.
void turn_queries(const Exec& exec, const TensorView& q) {
  const auto turn = [&q](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token)
      hadamard(q.as<float>() + token * q.stride[0], q.shape[1], q.shape[2]);
  };
  if (q.count() < kElementsWorthThreads) return turn(0, q.shape[0], 0);
  exec.threads.parallel_for(q.shape[0], turn);
}

}  // namespace

AttentionKind attention_kind(std::string_view name) {
  if (name == "fused") return AttentionKind::kFused;
  if (name == "eager") return AttentionKind::kEager;
  fail("unknown attention ", in_quotes(name), "; there are: fused, eager");
}

std::vector<std::string> attend_problems(const AttendArgs& args) {
  std::vector<std::string> problems;
  const auto problem = [&](auto... parts) { problems.push_back(str(parts...)); };
  const Shape& q = args.q.shape;
  if (q.rank() != 3 || !(q == args.out.shape)) {
    problem("q ", q.text(), " and out ", args.out.shape.text(),
            " must be [total_q, num_heads, head_dim]");
    return problems;
  }
  if (args.q.dtype != DType::kF32 || args.out.dtype != DType::kF32)
    problem("q and out must be f32");
  if (args.kv.num_kv_heads < 1 || q[1] % args.kv.num_kv_heads != 0) {
    problem("num_heads ", q[1], " is no multiple of num_kv_heads ", args.kv.num_kv_heads);
  }
  if (q[2] != args.kv.head_dim)
    problem("head_dim ", q[2], " of q is not ", args.kv.head_dim, " of the cache");
  if (!(args.softcap >= 0)) problem("softcap ", args.softcap, " must be above zero, or 0 for none");
  if (!std::isfinite(args.scale)) problem("scale ", args.scale, " must be finite");
  if (args.window < 0) problem("window ", args.window, " must be at least 1, or 0 for none");
  if (args.chunk < 0) problem("chunk ", args.chunk, " must be at least 1, or 0 for none");
  if (args.kv.num_segments < 0 || args.kv.num_segments > KVView::kMaxSegments) {
    problem("a view of ", args.kv.num_segments, " segments");
  } else if (const char* wrong = view_problem(args.kv)) {
    problem(wrong);
  }
  if (args.kv.hadamard && !std::has_single_bit(static_cast<uint64_t>(args.kv.head_dim)))
    problem("head_dim ", args.kv.head_dim, " must be a power of two for a Hadamard rotation");
  return problems;
}

void attend(const Exec& exec, AttentionKind kind, const AttendArgs& args) {
  if (const auto problems = attend_problems(args); !problems.empty())
    fail("attention: ", join(problems, "; "));
  if (args.kv.hadamard) turn_queries(exec, args.q);
  if (kind == AttentionKind::kFused) {
    exec.kernels.attend(exec, args);
  } else {
    eager_attend(exec, args);
  }
}

size_t attend_scratch_bytes(const Exec& exec, AttentionKind kind, const AttendArgs& args) {
  return kind == AttentionKind::kFused ? exec.kernels.attend_scratch(args, exec.threads.size())
                                       : eager_attend_scratch(args, exec.threads.size());
}

}  // namespace larder
