// Where the tokens of a view lie. The only code that walks segments, block tables and rings; what
// comes after sees one block of 64 positions, whatever it was assembled from.
#pragma once

#include <cstdint>

#include "larder/cpu/attend_tile.h"
#include "larder/tensor/kv_view.h"

namespace larder::cpu {

// Positions [begin, end); empty when end <= begin.
struct KeyRange {
  int64_t begin = 0, end = 0;
};

// From the first to past the last position that row `row` of the batch holds (with the gaps
// between segments, if there are any).
KeyRange row_keys(const KVView& view, int32_t row);

// Which keys to look up: the block of 64 positions that starts at `first`, of them only those
// within `wanted`.
struct BlockAsk {
  int32_t row = 0, kv_head = 0;
  int64_t first = 0;
  KeyRange wanted;
};

// The codes of one side that the vector sets read themselves, of the first segment that has such
// (one has, in every cache kind); `segment` -1 if none does.
KVCodes codes_of(const KVView& view, KVSide KVSegment::*side);

// Fills `block`. What it reads is `codes` of its sides: where they are null all codes are kPacked.
// `zeros` is at least head_dim * 4 zero bytes. Offsets are computed in 64 bits
// throughout (cases 25).
void locate_block(const KVView& view, const BlockAsk& ask, const void* zeros, KVBlock& block);

// Widens what lies in codes (KVFormat::kPacked) on one side of a located block to f32: lane i into
// rows[i * stride ..], where the block then points.
void stage_lanes(const KVView& view, const BlockAsk& ask, KVSide KVSegment::*side, int64_t stride,
                 float* rows, KVBlock& block);

// The byte address of a token: slot `slot` of row `row`, head `kv_head`, on one side of a segment.
uintptr_t token_address(const KVSegment& segment, const KVSide& side, int32_t row, int32_t kv_head,
                        int64_t slot);

// A position divided by a block or span size, rounded down for negative ones too.
constexpr int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace larder::cpu
