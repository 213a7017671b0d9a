// Eager attention: for each query and head all scores, one softmax in f32, then the weighted sum of
// V, key after key. Plain loops, so that it can be read; it walks the view one token at a time and
// serves as the reference for every fused path. The order of its sums is the order of positions, so
// its bits do not depend on the batch, the chunking or the threads.
#include <cmath>
#include <limits>

#include "larder/attention/attention.h"
#include "larder/tensor/kv_dequant.h"
#include "larder/tensor/kv_rows.h"

namespace larder {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Calls body(position, segment, index in the segment) for every kept token of the row, oldest
// first.
template <class Body>
void for_each_key(const KVView& kv, int32_t row, const Body& body) {
  for (int32_t s = 0; s < kv.num_segments; ++s) {
    const KVSegment& segment = kv.segment[s];
    for (int64_t i = 0; i < segment.len[row]; ++i)
      body(segment.first_position[row] + i, segment, i);
  }
}

// The first position of the chunk that `position` is in, also for negative ones.
int64_t chunk_begin(int64_t position, int64_t chunk) {
  const int64_t past = position % chunk;
  return position - (past < 0 ? past + chunk : past);
}

bool visible(const AttendArgs& args, int32_t row, int64_t query, int64_t key) {
  if (args.causal && key > query) return false;
  if (args.window > 0 && query - key >= args.window) return false;
  if (args.chunk > 0 && key < chunk_begin(query, args.chunk)) return false;
  return !args.key_mask || args.key_mask[row * args.key_mask_row + key] != 0;
}

struct Query {
  int32_t row = 0, index = 0;  // batch row, number within the row
  int64_t token = 0, head = 0;
};

// The head of the i-th kept token of the row in a segment, as f32.
void read_head(const Exec& exec, const KVView& kv, const KVSegment& segment, const KVSide& side,
               KVToken token, float* out) {
  token.slot += segment.begin[token.row];
  if (segment.wrap > 0) token.slot %= segment.wrap;
  if (side.quant.bits > 0) return kv_dequantize(kv, segment, side, token, out);
  const uintptr_t address = kv_address(segment, side, token);
  exec.kernels.load(out, reinterpret_cast<const void*>(address), side.dtype, kv.head_dim);
}

// One query of one head. scores: room for every kept key; k_or_v: [head_dim].
void attend_one(const Exec& exec, const AttendArgs& args, const Query& at, float* scores,
                float* k_or_v) {
  const int64_t heads = args.q.shape[1], dim = args.q.shape[2];
  const int64_t kv_head = at.head / (heads / args.kv.num_kv_heads);
  const int64_t position = args.q_position[at.token];
  const float* q = args.q.as<float>() + at.token * args.q.stride[0] + at.head * args.q.stride[1];
  const float* bias = args.bias ? args.bias + at.row * args.bias_row + at.head * args.bias_head +
                                      at.index * args.bias_query
                                : nullptr;
  float most = args.sinks ? args.sinks[at.head] : kHidden;
  int64_t n = 0;
  for_each_key(args.kv, at.row, [&](int64_t key, const KVSegment& segment, int64_t i) {
    float& score = scores[n++] = kHidden;
    if (!visible(args, at.row, position, key)) return;
    read_head(exec, args.kv, segment, segment.k, {at.row, i, kv_head}, k_or_v);
    float dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += q[d] * k_or_v[d];
    score = args.scale * dot;
    if (args.softcap > 0) score = args.softcap * std::tanh(score / args.softcap);
    if (bias) score += bias[key];
    most = score > most ? score : most;
  });
  float sum = args.sinks && most != kHidden ? std::exp(args.sinks[at.head] - most) : 0;
  for (int64_t i = 0; i < n; ++i) {
    scores[i] = scores[i] == kHidden ? 0 : std::exp(scores[i] - most);
    sum += scores[i];
  }
  float* out = args.out.as<float>() + at.token * args.out.stride[0] + at.head * args.out.stride[1];
  for (int64_t d = 0; d < dim; ++d) out[d] = 0;
  n = 0;
  for_each_key(args.kv, at.row, [&](int64_t /*key*/, const KVSegment& segment, int64_t i) {
    const float weight = scores[n++];
    if (weight == 0)
      return;  // hidden, or too small to count: what lies there may never have been written
    read_head(exec, args.kv, segment, segment.v, {at.row, i, kv_head}, k_or_v);
    for (int64_t d = 0; d < dim; ++d) out[d] += weight / sum * k_or_v[d];
  });
  if (args.lse) args.lse[at.token * heads + at.head] = sum == 0 ? kHidden : most + std::log(sum);
}

}  // namespace

size_t eager_attend_scratch(const AttendArgs& args, int num_threads) {
  return static_cast<size_t>(num_threads) *
         (Arena::padded(longest_row(args.kv, args.batch), DType::kF32) +
          Arena::padded(args.kv.head_dim, DType::kF32));
}

void eager_attend(const Exec& exec, const AttendArgs& args) {
  const Arena::Mark mark(exec.scratch);
  const int64_t threads = exec.threads.size(), keys = longest_row(args.kv, args.batch),
                dim = args.kv.head_dim;
  // Rows padded apart, so that no two threads write to one cache line.
  const auto padded_floats = [](int64_t n) {
    return static_cast<int64_t>(Arena::padded(n, DType::kF32) / sizeof(float));
  };
  const TensorView scores = exec.scratch.take({threads, padded_floats(keys)}, DType::kF32);
  const TensorView vectors = exec.scratch.take({threads, padded_floats(dim)}, DType::kF32);
  const int64_t heads = args.q.shape[1];
  exec.threads.parallel_for(args.q.shape[0] * heads, [&](int64_t begin, int64_t end, int thread) {
    Query at;
    for (int64_t i = begin; i < end; ++i) {
      at.token = i / heads;
      at.head = i % heads;
      while (at.token >= args.q_start[at.row + 1]) ++at.row;
      at.index = static_cast<int32_t>(at.token - args.q_start[at.row]);
      attend_one(exec, args, at, scores.as<float>() + thread * scores.stride[0],
                 vectors.as<float>() + thread * vectors.stride[0]);
    }
  });
}

}  // namespace larder
