// How the attention of one call is cut into tasks for threads, and the scratch that takes. The cut
// decides who computes what, never the order of a sum: every task folds whole spans.
#pragma once

#include <cstdint>

#include "larder/cpu/attend_tile.h"
#include "larder/cpu/kv_tile.h"
#include "larder/tensor/kernels.h"

namespace larder::cpu {

static_assert(kTileKeys == kAttendBlock && kAttendSpan % kAttendBlock == 0);

// The fixed numbers of a call, from shapes, the length of the longest row (or a bound of it: more
// is only more room), and the number of threads alone.
struct AttendPlan {
  AttendPlan(const AttendArgs& args, int num_threads);

  int32_t heads, kv_heads, group, head_dim, padded_dim;
  int32_t tile_queries;  // queries a tile: its rows are these times `group`
  // Few queries over many keys (decode): a span is a task of its own, and parts wait in scratch.
  bool split;
  KVCodes k_codes, v_codes;  // that are read where they lie; segment -1: none
  int64_t max_spans;         // room for parts, in spans a row
  int64_t parts_rows;        // waiting parts: a query with a head and a span

  int64_t tile_rows() const { return int64_t{tile_queries} * group; }
  int64_t thread_floats() const;  // working memory of one thread
};

// One tile of queries of one row and key head.
struct AttendTask {
  int32_t row = 0, kv_head = 0;
  int32_t begin = 0, end = 0;  // queries, counted over all rows
  KeyRange keys;               // what any of them may see, by position
  int64_t slot = -1;  // a split tile's span, counted from its first; -1: all spans, not split
  int64_t cost = 0;   // about blocks times queries
};

// What the queries [begin, end) of `row` may see, by window, chunk, causality and what the row
// holds.
KeyRange visible_keys(const AttendArgs& args, int32_t row, int32_t begin, int32_t end);
// The first span of a range, and how many it touches.
int64_t first_span(const KeyRange& keys);
int64_t count_spans(const KeyRange& keys);
// Of `keys`, those within the span.
KeyRange keys_of_span(const KeyRange& keys, int64_t span);
// Whether the parts of this tile of queries wait in scratch, one a span.
bool is_split(const AttendPlan& plan, const AttendArgs& args, int32_t row, const KeyRange& keys);

// Calls body(task) for every task of the call, always in the same order.
void for_each_task(const AttendPlan& plan, const AttendArgs& args,
                   FunctionRef<void(const AttendTask&)> body);

}  // namespace larder::cpu
