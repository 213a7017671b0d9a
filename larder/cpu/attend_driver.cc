#include "larder/cpu/attend_driver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "larder/cpu/attend_plan.h"

namespace larder::cpu {
namespace {

// What all threads of a call share. Nothing in it changes after the start but `waiting`, where
// each task writes rows of its own.
struct Call {
  const AttendOps& ops;
  const AttendArgs& args;
  const AttendPlan& plan;
  AttendParts waiting;
};

// One thread's working memory, cut out of its piece of the arena.
struct Work {
  Work(const AttendPlan& plan, float* memory) {
    const int64_t rows = (plan.tile_rows() + kTilePad - 1) / kTilePad * kTilePad;
    const auto take = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
    v_tile = take(int64_t{kTileKeys} * plan.padded_dim);
    zeros = take(plan.padded_dim);
    for (AttendParts* parts : {&span, &total})
      *parts = {take(rows), take(rows), take(rows * plan.padded_dim)};
    k_tile = take(int64_t{kTileKeys} * plan.head_dim);
    q = take(rows * plan.head_dim);
    std::fill_n(zeros, plan.padded_dim, 0.0f);
    // Lanes that hold no key are computed with what lies here, and dropped.
    const int64_t parameters = kParameterFloats * plan.head_dim;
    float* widened = take(4 * parameters);
    std::fill_n(widened, 4 * parameters, 0.0f);
    for (KVBlock& block : blocks) {
      block.k.codes = &plan.k_codes, block.v.codes = &plan.v_codes;
      block.k.scale = widened, block.k.zero = widened + parameters;
      block.v.scale = widened + 2 * parameters, block.v.zero = widened + 3 * parameters;
    }
  }
  float *v_tile, *zeros, *k_tile, *q;
  AttendParts span{}, total{};
  KVBlock blocks[2];
};

AttendParts from_row(const AttendParts& parts, int64_t row, int32_t padded_dim) {
  return {parts.m + row, parts.l + row, parts.o + row * padded_dim};
}

void clear(const AttendParts& parts, int64_t rows, int32_t padded_dim) {
  std::fill_n(parts.m, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(parts.l, rows, 0.0f);
  std::fill_n(parts.o, rows * padded_dim, 0.0f);
}

int32_t count_rows(const Call& call, const AttendTask& task) {
  return (task.end - task.begin) * call.plan.group;
}

// Where the parts of a split tile wait: `span` counts from the tile's first.
AttendParts waiting_parts(const Call& call, const AttendTask& task, int64_t span) {
  const int64_t rows = count_rows(call, task);
  const int64_t before = int64_t{task.begin} * call.plan.heads + task.kv_head * rows;
  return from_row(call.waiting, before * call.plan.max_spans + span * rows, call.plan.padded_dim);
}

// Rows are queries with their heads: all heads of a query, then the next query.
void pack_queries(const Call& call, const AttendTask& task, float* q) {
  const int64_t floats = int64_t{call.plan.group} * call.plan.head_dim;
  float* to = q;
  for (int64_t token = task.begin; token < task.end; ++token)
    to =
        std::copy_n(call.args.q.as<float>() + token * call.args.q.stride[0] + task.kv_head * floats,
                    floats, to);
  if (call.ops.prepare_q != nullptr)
    call.ops.prepare_q(q, count_rows(call, task), call.plan.head_dim);
}

uint64_t lanes_below(int64_t count) {
  if (count <= 0) return 0;
  return count >= kTileKeys ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// The lanes of the block that hold a key which the caller's mask allows.
uint64_t allowed_lanes(const AttendArgs& args, int32_t row, int64_t first, uint64_t present) {
  if (args.key_mask == nullptr) return present;
  const uint8_t* mask = args.key_mask + row * args.key_mask_row;
  uint64_t allowed = 0;
  for (uint64_t left = present; left != 0; left &= left - 1) {
    const int lane = __builtin_ctzll(left);
    allowed |= static_cast<uint64_t>(mask[first + lane] != 0) << lane;
  }
  return allowed;
}

uint64_t sight(const AttendArgs& args, int64_t position, int64_t first) {
  uint64_t lanes = ~uint64_t{0};
  if (args.causal) lanes &= lanes_below(position - first + 1);
  // Keys up to position - window are out of sight; a window wider than everything hides none.
  if (args.window > 0 && args.window <= position - first)
    lanes &= ~lanes_below(position - args.window - first + 1);
  if (args.chunk > 0) lanes &= ~lanes_below(floor_div(position, args.chunk) * args.chunk - first);
  return lanes;
}

const float* bias_of(const AttendArgs& args, const AttendTask& task, int64_t token, int32_t head,
                     int64_t first) {
  if (args.bias == nullptr) return nullptr;
  const int64_t query = token - args.q_start[task.row];
  return args.bias + task.row * args.bias_row + head * args.bias_head + query * args.bias_query +
         first;
}

// Few rows read V where it lies rather than make a tile of it.
bool reads_directly(const Call& call, const AttendTask& task, const KVBlock& block) {
  const auto same = [&](KVFormat format) { return format == block.v.format[0]; };
  return !call.ops.needs_v_tile && count_rows(call, task) <= kTileRows &&
         call.plan.head_dim % kDirectChannels == 0 &&
         std::all_of(block.v.format, block.v.format + kTileKeys, same);
}

// A block whose K tile is loaded, and the one after it.
struct Blocks {
  const KVBlock* block;
  const KVBlock* next;
  const float* v_tile;  // null: V is read where it lies
};

// Folds one block into the parts of all rows of the tile, kTileRows at a time.
void fold_block(const Call& call, const AttendTask& task, int64_t first, const Blocks& blocks,
                const Work& work, const AttendParts& parts) {
  const AttendPlan& plan = call.plan;
  const uint64_t allowed = allowed_lanes(call.args, task.row, first, blocks.block->present);
  const int32_t rows = count_rows(call, task);
  for (int32_t row = 0; row < rows; row += kTileRows) {
    BlockWork part{.rows = std::min(kTileRows, rows - row),
                   .head_dim = plan.head_dim,
                   .padded_dim = plan.padded_dim,
                   .q = work.q + int64_t{row} * plan.head_dim,
                   .k_tile = work.k_tile,
                   .v_tile = blocks.v_tile,
                   .block = blocks.block,
                   .next = row == 0 ? blocks.next : nullptr,
                   .scale = call.args.scale,
                   .softcap = call.args.softcap,
                   .visible = {},
                   .bias = {},
                   .parts = from_row(parts, row, plan.padded_dim)};
    for (int32_t i = 0; i < part.rows; ++i) {
      const int64_t token = task.begin + (row + i) / plan.group;
      const int32_t head = task.kv_head * plan.group + (row + i) % plan.group;
      part.visible[i] = allowed & sight(call.args, call.args.q_position[token], first);
      part.bias[i] = bias_of(call.args, task, token, head, first);
    }
    call.ops.fold_block(part);
  }
}

// Loads K of the block, and V but where it is read where it lies (null). Codes that the set cannot
// read are staged in the tile of V: those of K until K is loaded, those of V as rows of that tile.
const float* load_tiles(const Call& call, const AttendTask& task, const BlockAsk& ask,
                        KVBlock& block, const KVBlock& next, const Work& work) {
  const AttendPlan& plan = call.plan;
  if (plan.k_codes.segment >= 0)
    call.ops.widen_parameters(block, block.k, next, next.k, plan.head_dim);
  if (plan.v_codes.segment >= 0)
    call.ops.widen_parameters(block, block.v, next, next.v, plan.head_dim);
  stage_lanes(call.args.kv, ask, &KVSegment::k, plan.head_dim, work.v_tile, block);
  call.ops.load_k(block, next, plan.head_dim, work.k_tile);
  stage_lanes(call.args.kv, ask, &KVSegment::v, plan.padded_dim, work.v_tile, block);
  if (reads_directly(call, task, block)) return nullptr;
  call.ops.load_v(block, next, plan.head_dim, plan.padded_dim, work.v_tile);
  return work.v_tile;
}

// The blocks of `keys`, all within one span, left to right.
void fold_span(const Call& call, const AttendTask& task, const KeyRange& keys, Work& work,
               const AttendParts& parts) {
  const AttendPlan& plan = call.plan;
  clear(parts, count_rows(call, task), plan.padded_dim);
  const auto ask = [&](int64_t first, const KeyRange& wanted) {
    return BlockAsk{task.row, task.kv_head, first, wanted};
  };
  // The block after the last is fetched, too: the next span, often this thread's next task.
  const KeyRange all = row_keys(call.args.kv, task.row);
  int64_t first = floor_div(keys.begin, kAttendBlock) * kAttendBlock;
  KVBlock *block = &work.blocks[0], *next = &work.blocks[1];
  if (first < keys.end) locate_block(call.args.kv, ask(first, keys), work.zeros, *block);
  for (; first < keys.end; first += kAttendBlock, std::swap(block, next)) {
    const int64_t after = first + kAttendBlock;
    locate_block(call.args.kv, ask(after, after < keys.end ? keys : all), work.zeros, *next);
    if (block->present == 0) continue;
    const float* v_tile = load_tiles(call, task, ask(first, keys), *block, *next, work);
    fold_block(call, task, first, {block, next, v_tile}, work, parts);
  }
}

// The sink comes last; then rows are divided by their sums and leave.
void finish(const Call& call, const AttendTask& task, const AttendParts& parts) {
  const AttendArgs& args = call.args;
  for (int32_t row = 0; row < count_rows(call, task); ++row) {
    const int64_t token = task.begin + row / call.plan.group;
    const int32_t head = task.kv_head * call.plan.group + row % call.plan.group;
    float* out =
        args.out.as<float>() + token * args.out.stride[0] + int64_t{head} * call.plan.head_dim;
    call.ops.finish_row(from_row(parts, row, call.plan.padded_dim),
                        args.sinks == nullptr ? nullptr : args.sinks + head, call.plan.head_dim,
                        out);
    if (args.lse == nullptr) continue;
    args.lse[token * call.plan.heads + head] = parts.l[row] == 0
                                                   ? -std::numeric_limits<float>::infinity()
                                                   : parts.m[row] + std::log(parts.l[row]);
  }
}

void run_task(const Call& call, const AttendTask& task, Work& work) {
  pack_queries(call, task, work.q);
  if (task.slot >= 0) {
    fold_span(call, task, task.keys, work, waiting_parts(call, task, task.slot));
    return;
  }
  const int32_t rows = count_rows(call, task);
  clear(work.total, rows, call.plan.padded_dim);
  const int64_t first = first_span(task.keys), spans = count_spans(task.keys);
  for (int64_t span = first; span < first + spans; ++span) {
    fold_span(call, task, keys_of_span(task.keys, span), work, work.span);
    call.ops.merge(work.total, work.span, rows, call.plan.padded_dim);
  }
  finish(call, task, work.total);
}

// Each thread runs the tasks whose middle falls into its share of the whole cost.
void run_share(const Call& call, int thread, int threads, Work& work) {
  int64_t total = 0, before = 0;
  for_each_task(call.plan, call.args, [&](const AttendTask& task) { total += task.cost; });
  for_each_task(call.plan, call.args, [&](const AttendTask& task) {
    const int64_t middle = 2 * before + task.cost;
    before += task.cost;
    if (middle * threads / (2 * total) == thread) run_task(call, task, work);
  });
}

void fold_split_rows(const Call& call, int64_t begin, int64_t end) {
  AttendTask task;
  for (int64_t i = begin; i < end; ++i) {
    task.row = static_cast<int32_t>(i / call.plan.kv_heads);
    task.kv_head = static_cast<int32_t>(i % call.plan.kv_heads);
    task.begin = call.args.q_start[task.row], task.end = call.args.q_start[task.row + 1];
    const KeyRange keys = visible_keys(call.args, task.row, task.begin, task.end);
    if (!is_split(call.plan, call.args, task.row, keys)) continue;
    const int64_t spans = count_spans(keys);
    const AttendParts total = waiting_parts(call, task, 0);
    if (spans == 0) clear(total, count_rows(call, task), call.plan.padded_dim);
    for (int64_t span = 1; span < spans; ++span)
      call.ops.merge(total, waiting_parts(call, task, span), count_rows(call, task),
                     call.plan.padded_dim);
    finish(call, task, total);
  }
}

}  // namespace

size_t attend_with_scratch(const AttendArgs& args, int num_threads) {
  const AttendPlan plan(args, num_threads);
  return Arena::padded(checked_mul(num_threads, plan.thread_floats()), DType::kF32) +
         2 * Arena::padded(plan.parts_rows, DType::kF32) +
         Arena::padded(checked_mul(plan.parts_rows, plan.padded_dim), DType::kF32);
}

void attend_with(const AttendOps& ops, const Exec& exec, const AttendArgs& args) {
  const Arena::Mark mark(exec.scratch);
  const int threads = exec.threads.size();
  const AttendPlan plan(args, threads);
  const auto take = [&](int64_t count) {
    return exec.scratch.take({count}, DType::kF32).as<float>();
  };
  float* memory = take(threads * plan.thread_floats());
  const AttendParts waiting{take(plan.parts_rows), take(plan.parts_rows),
                            take(plan.parts_rows * plan.padded_dim)};
  const Call call{ops, args, plan, waiting};
  exec.threads.parallel_for(threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t thread = begin; thread < end; ++thread) {
      Work work(plan, memory + thread * plan.thread_floats());
      run_share(call, static_cast<int>(thread), threads, work);
    }
  });
  if (!plan.split) return;
  exec.threads.parallel_for(
      int64_t{args.batch} * plan.kv_heads,
      [&](int64_t begin, int64_t end, int) { fold_split_rows(call, begin, end); });
}

}  // namespace larder::cpu
