#include "larder/cpu/attend_plan.h"

#include <algorithm>

#include "larder/tensor/kv_rows.h"

namespace larder::cpu {
namespace {

// Loading a tile of keys costs as much as 4 rows of arithmetic on it, so 96 rows make it small
// (docs/performance.md), where there are rows enough to keep all threads busy with such tiles.
constexpr int64_t kTargetRows = 96;
constexpr int64_t kTasksPerThread = 4;
// Up to so many queries a row may be cut by spans: single tokens and drafts being verified.
constexpr int64_t kSplitQueries = 8;
// With so many tiles a thread, whole tiles balance well enough.
constexpr int64_t kTilesPerThread = 16;

int64_t count_blocks(const KeyRange& keys) {
  if (keys.end <= keys.begin) return 0;
  return floor_div(keys.end - 1, kAttendBlock) - floor_div(keys.begin, kAttendBlock) + 1;
}

int64_t pad(int64_t count) { return ceil_div(count, kTilePad) * kTilePad; }

void split_tile(const AttendTask& tile, FunctionRef<void(const AttendTask&)> body) {
  const int64_t first = first_span(tile.keys), spans = count_spans(tile.keys);
  for (int64_t slot = 0; slot < spans; ++slot) {
    AttendTask task = tile;
    task.slot = slot;
    task.keys = keys_of_span(tile.keys, first + slot);
    task.cost = 1 + count_blocks(task.keys) * (tile.end - tile.begin);
    body(task);
  }
}

}  // namespace

AttendPlan::AttendPlan(const AttendArgs& args, int num_threads) {
  const int64_t total_q = args.q.shape[0], batch = std::max<int64_t>(1, args.batch);
  heads = static_cast<int32_t>(args.q.shape[1]);
  kv_heads = args.kv.num_kv_heads;
  group = heads / kv_heads;
  head_dim = static_cast<int32_t>(args.q.shape[2]);
  padded_dim = static_cast<int32_t>(pad(head_dim));
  split = batch * kv_heads < kTilesPerThread * num_threads && total_q <= batch * kSplitQueries;
  const int64_t fair = ceil_div(total_q * kv_heads, kTasksPerThread * num_threads);
  const int64_t least = split ? kSplitQueries : 1;
  tile_queries = static_cast<int32_t>(std::max(least, std::min(kTargetRows / group, fair)));
  k_codes = codes_of(args.kv, &KVSegment::k), v_codes = codes_of(args.kv, &KVSegment::v);
  int64_t keys = longest_row(args.kv, args.batch);
  for (const int64_t reach : {args.window, args.chunk})
    if (reach > 0 && reach < keys) keys = std::min(keys, reach + total_q);
  max_spans = keys / kAttendSpan + 2;
  parts_rows = split ? max_spans * total_q * heads : 0;
}

int64_t AttendPlan::thread_floats() const {
  const int64_t tiles = int64_t{kTileKeys} * (head_dim + padded_dim);
  const int64_t rows = pad(tile_rows());
  const int64_t parameters = 4 * kParameterFloats * head_dim;
  return tiles + padded_dim + parameters + rows * (head_dim + 2 * (padded_dim + 2));
}

KeyRange visible_keys(const AttendArgs& args, int32_t row, int32_t begin, int32_t end) {
  KeyRange keys = row_keys(args.kv, row);
  if (begin >= end) return {};
  const auto [least, most] = std::minmax_element(args.q_position + begin, args.q_position + end);
  if (args.causal) keys.end = std::min(keys.end, *most + 1);
  // A window wider than everything is none; this also keeps the difference in range.
  if (args.window > 0 && args.window <= *least - keys.begin)
    keys.begin = std::max(keys.begin, *least - args.window + 1);
  if (args.chunk > 0) keys.begin = std::max(keys.begin, floor_div(*least, args.chunk) * args.chunk);
  return keys;
}

int64_t first_span(const KeyRange& keys) { return floor_div(keys.begin, kAttendSpan); }

int64_t count_spans(const KeyRange& keys) {
  return keys.end <= keys.begin ? 0 : floor_div(keys.end - 1, kAttendSpan) - first_span(keys) + 1;
}

KeyRange keys_of_span(const KeyRange& keys, int64_t span) {
  return {std::max(keys.begin, span * kAttendSpan), std::min(keys.end, (span + 1) * kAttendSpan)};
}

bool is_split(const AttendPlan& plan, const AttendArgs& args, int32_t row, const KeyRange& keys) {
  return plan.split && args.q_start[row + 1] - args.q_start[row] <= plan.tile_queries &&
         count_spans(keys) <= plan.max_spans;
}

void for_each_task(const AttendPlan& plan, const AttendArgs& args,
                   FunctionRef<void(const AttendTask&)> body) {
  for (int32_t row = 0; row < args.batch; ++row) {
    const int32_t last = args.q_start[row + 1];
    for (int32_t begin = args.q_start[row]; begin < last; begin += plan.tile_queries) {
      AttendTask tile;
      tile.row = row, tile.begin = begin, tile.end = std::min(last, begin + plan.tile_queries);
      tile.keys = visible_keys(args, row, tile.begin, tile.end);
      tile.cost = 1 + count_blocks(tile.keys) * (tile.end - tile.begin);
      const bool split = is_split(plan, args, row, tile.keys);
      for (tile.kv_head = 0; tile.kv_head < plan.kv_heads; ++tile.kv_head)
        split ? split_tile(tile, body) : body(tile);
    }
  }
}

}  // namespace larder::cpu
