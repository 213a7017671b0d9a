// Attention, one query and one head at a time. Keys are cut by absolute position into blocks of 64
// and spans of 512; blocks fold left to right into their span, spans into the result, the sink
// last. So a query's result depends on its keys alone, not on where they lie or what else runs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "larder/cpu/kv_tile.h"
#include "larder/cpu/reference/element.h"
#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kScratchRows = 3 + 2 * kTileKeys;  // three parts, two tiles of widened codes

struct Query {
  int32_t row, head, kv_head;
  int64_t index;  // among the queries of its row
  int64_t token;  // among all
};

// The result over some keys: the largest score, the sum of exp(score - m), and that sum with v.
struct Part {
  float m = -kInfinity, l = 0;
  float* o = nullptr;
};

void clear(Part& part, int64_t head_dim) {
  part.m = -kInfinity, part.l = 0;
  std::fill_n(part.o, head_dim, 0.0f);
}

// Empty parts change nothing; the first that is not is taken as it is.
void merge(Part& into, const Part& from, int64_t head_dim) {
  if (from.l == 0) return;
  const bool first = into.l == 0;
  const float m = first ? from.m : std::max(into.m, from.m);
  const float a = first ? 0 : std::exp(into.m - m), b = first ? 1 : std::exp(from.m - m);
  into.m = m;
  into.l = first ? from.l : into.l * a + from.l * b;
  for (int64_t d = 0; d < head_dim; ++d)
    into.o[d] = first ? from.o[d] : into.o[d] * a + from.o[d] * b;
}

bool sees(const AttendArgs& args, const Query& query, int64_t key) {
  const int64_t position = args.q_position[query.token];
  if (args.causal && key > position) return false;
  if (args.window > 0 && position - key >= args.window) return false;
  if (args.chunk > 0 && key < floor_div(position, args.chunk) * args.chunk) return false;
  return args.key_mask == nullptr || args.key_mask[query.row * args.key_mask_row + key] != 0;
}

float widen(const void* data, KVFormat format, int64_t d) {
  if (format == KVFormat::kF32) return read_element(data, DType::kF32, d);
  return read_element(data, format == KVFormat::kF16 ? DType::kF16 : DType::kBF16, d);
}

float score(const AttendArgs& args, const Query& query, const KVBlock& block, int lane,
            int64_t key) {
  const int64_t head_dim = args.q.shape[2];
  const float* q =
      args.q.as<float>() + query.token * args.q.stride[0] + int64_t{query.head} * head_dim;
  float sum = 0;
  for (int64_t d = 0; d < head_dim; ++d)
    sum += q[d] * widen(block.k.at[lane], block.k.format[lane], d);
  float s = args.scale * sum;
  if (args.softcap > 0) s = args.softcap * std::tanh(s / args.softcap);
  if (args.bias != nullptr)
    s += args.bias[query.row * args.bias_row + query.head * args.bias_head +
                   query.index * args.bias_query + key];
  return s;
}

// A key that the query does not see has no score, and its V is not read; a score of -inf (from a
// bias) hides the key too.
void attend_block(const AttendArgs& args, const Query& query, int64_t first, const KVBlock& block,
                  Part& part) {
  const int64_t head_dim = args.q.shape[2];
  clear(part, head_dim);
  float s[kTileKeys];
  for (int lane = 0; lane < kTileKeys; ++lane) {
    const bool visible = (block.present >> lane & 1) != 0 && sees(args, query, first + lane);
    s[lane] = visible ? score(args, query, block, lane, first + lane) : -kInfinity;
    part.m = std::max(part.m, s[lane]);
  }
  for (int lane = 0; lane < kTileKeys; ++lane) {
    if (s[lane] == -kInfinity) continue;
    const float p = std::exp(s[lane] - part.m);
    part.l += p;
    for (int64_t d = 0; d < head_dim; ++d)
      part.o[d] += p * widen(block.v.at[lane], block.v.format[lane], d);
  }
}

// parts: of the block, the span, the whole. rows: two tiles [64, head_dim], for K and V that lie in
// codes.
void attend_query(const AttendArgs& args, const Query& query, float* rows, Part (&parts)[3]) {
  auto& [block_part, span, total] = parts;
  const int64_t head_dim = args.q.shape[2];
  const KeyRange keys = row_keys(args.kv, query.row);
  clear(total, head_dim);
  clear(span, head_dim);
  int64_t first = floor_div(keys.begin, kAttendBlock) * kAttendBlock;
  for (; first < keys.end; first += kAttendBlock) {
    KVBlock block;
    const BlockAsk ask{query.row, query.kv_head, first, keys};
    locate_block(args.kv, ask, nullptr, block);
    stage_lanes(args.kv, ask, &KVSegment::k, head_dim, rows, block);
    stage_lanes(args.kv, ask, &KVSegment::v, head_dim, rows + kTileKeys * head_dim, block);
    attend_block(args, query, first, block, block_part);
    merge(span, block_part, head_dim);
    if (floor_div(first + kAttendBlock, kAttendSpan) == floor_div(first, kAttendSpan)) continue;
    merge(total, span, head_dim);
    clear(span, head_dim);
  }
  merge(total, span, head_dim);
}

void finish(const AttendArgs& args, const Query& query, Part& total, Part& sink) {
  const int64_t head_dim = args.q.shape[2];
  if (args.sinks != nullptr && args.sinks[query.head] != -kInfinity) {
    clear(sink, head_dim);
    sink.m = args.sinks[query.head], sink.l = 1;
    merge(total, sink, head_dim);
  }
  float* out =
      args.out.as<float>() + query.token * args.out.stride[0] + int64_t{query.head} * head_dim;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = total.l == 0 ? 0 : total.o[d] / total.l;
  if (args.lse != nullptr)
    args.lse[query.token * args.q.shape[1] + query.head] =
        total.l == 0 ? -kInfinity : total.m + std::log(total.l);
}

}  // namespace

size_t attend_scratch(const AttendArgs& args, int) {
  return Arena::padded(checked_mul(kScratchRows, args.q.shape[2]), DType::kF32);
}

void attend(const Exec& exec, const AttendArgs& args) {
  const Arena::Mark mark(exec.scratch);
  const int64_t head_dim = args.q.shape[2];
  float* scratch = exec.scratch.take({kScratchRows, head_dim}, DType::kF32).as<float>();
  Part parts[3];
  for (int i = 0; i < 3; ++i) parts[i].o = scratch + i * head_dim;
  const auto heads = static_cast<int32_t>(args.q.shape[1]);
  const int32_t group = heads / args.kv.num_kv_heads;
  for (int32_t row = 0; row < args.batch; ++row) {
    for (int32_t token = args.q_start[row]; token < args.q_start[row + 1]; ++token) {
      for (int32_t head = 0; head < heads; ++head) {
        const Query query{row, head, head / group, token - args.q_start[row], token};
        attend_query(args, query, scratch + 3 * head_dim, parts);
        finish(args, query, parts[2], parts[0]);
      }
    }
  }
}

}  // namespace larder::cpu::reference
