#include "larder/cpu/kv_tile.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder::cpu {
namespace {

KVFormat format_of(const KVSide& side) {
  switch (side.dtype) {
    case DType::kF16:
      return KVFormat::kF16;
    case DType::kBF16:
      return KVFormat::kBF16;
    default:
      LARDER_ASSERT(side.dtype == DType::kF32);
      return KVFormat::kF32;
  }
}

// Tokens that follow `slot` at a constant stride, itself included: to the end of its page, of the
// ring, or of what is asked.
int64_t run_length(const KVSegment& segment, int64_t slot, int64_t asked) {
  int64_t run = std::min(asked, segment.block_size - slot % segment.block_size);
  if (segment.wrap > 0) run = std::min(run, segment.wrap - slot);
  return run;
}

// Points lanes [lane, lane + count) at the tokens from `slot` on; they lie in one page.
void point_run(const KVSegment& segment, const BlockAsk& ask, int64_t slot, int64_t lane,
               int64_t count, KVBlock& block) {
  const uintptr_t k = token_address(segment, segment.k, ask.row, ask.kv_head, slot);
  const uintptr_t v = token_address(segment, segment.v, ask.row, ask.kv_head, slot);
  const KVFormat k_format = format_of(segment.k), v_format = format_of(segment.v);
  for (int64_t i = 0; i < count; ++i) {
    const auto step = static_cast<uintptr_t>(i);
    block.k[lane + i] =
        reinterpret_cast<const void*>(k + step * static_cast<uintptr_t>(segment.k.token_stride));
    block.v[lane + i] =
        reinterpret_cast<const void*>(v + step * static_cast<uintptr_t>(segment.v.token_stride));
    block.k_format[lane + i] = k_format;
    block.v_format[lane + i] = v_format;
  }
  block.present |= (count == kTileKeys ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << lane;
}

void locate_in_segment(const KVSegment& segment, const BlockAsk& ask, KVBlock& block) {
  const int64_t first = segment.first_position[ask.row];
  int64_t position = std::max({first, ask.first, ask.wanted.begin});
  const int64_t end =
      std::min({first + segment.len[ask.row], ask.first + kTileKeys, ask.wanted.end});
  while (position < end) {
    int64_t slot = segment.begin[ask.row] + (position - first);
    if (segment.wrap > 0) slot %= segment.wrap;
    const int64_t count = run_length(segment, slot, end - position);
    point_run(segment, ask, slot, position - ask.first, count, block);
    position += count;
  }
}

// Lanes that the view does not hold read zeros in their neighbours' format, so that a group of
// lanes has one format wherever the stored ones do.
void fill_absent(const void* zeros, KVBlock& block) {
  if (block.present == ~uint64_t{0} || block.present == 0) return;
  const int first = __builtin_ctzll(block.present);
  KVFormat k_format = block.k_format[first], v_format = block.v_format[first];
  for (int lane = 0; lane < kTileKeys; ++lane) {
    if ((block.present >> lane & 1) != 0) {
      k_format = block.k_format[lane], v_format = block.v_format[lane];
    } else {
      block.k[lane] = block.v[lane] = zeros;
      block.k_format[lane] = k_format, block.v_format[lane] = v_format;
    }
  }
}

}  // namespace

uintptr_t token_address(const KVSegment& segment, const KVSide& side, int32_t row, int32_t kv_head,
                        int64_t slot) {
  const int64_t page = slot / segment.block_size, within = slot % segment.block_size;
  const int64_t offset = segment.block_table[int64_t{row} * segment.table_stride + page] +
                         kv_head * side.head_stride + within * side.token_stride;
  return side.data + static_cast<uintptr_t>(offset);
}

KeyRange row_keys(const KVView& view, int32_t row) {
  KeyRange keys;
  bool any = false;
  for (int32_t s = 0; s < view.num_segments; ++s) {
    const KVSegment& segment = view.segment[s];
    if (segment.len == nullptr || segment.len[row] <= 0) continue;
    const int64_t begin = segment.first_position[row], end = begin + segment.len[row];
    keys.begin = any ? std::min(keys.begin, begin) : begin;
    keys.end = any ? std::max(keys.end, end) : end;
    any = true;
  }
  return keys;
}

void locate_block(const KVView& view, const BlockAsk& ask, const void* zeros, KVBlock& block) {
  block.present = 0;
  for (int32_t s = 0; s < view.num_segments; ++s) {
    const KVSegment& segment = view.segment[s];
    if (segment.len == nullptr || segment.len[ask.row] <= 0) continue;
    locate_in_segment(segment, ask, block);
  }
  fill_absent(zeros, block);
}

}  // namespace larder::cpu
