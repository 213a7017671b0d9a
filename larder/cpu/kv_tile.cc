#include "larder/cpu/kv_tile.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/tensor/kv_dequant.h"

namespace larder::cpu {
namespace {

KVFormat format_of(const KVSide& side) {
  if (side.quant.bits > 0) return KVFormat::kPacked;
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

// Whether the sets read these codes themselves: whole vectors of channels, see KVCodes.
bool are_readable(const KVView& view, const KVSegment& segment, const KVQuant& quant) {
  if (quant.bits != 8 && quant.bits != 4 && quant.bits != 2) return false;
  if (view.head_dim % 16 != 0) return false;
  if (quant.order == KVOrder::kFlatRows)
    return quant.group_size % 16 == 0 && view.head_dim % quant.group_size == 0;
  if (quant.order != KVOrder::kAligned) return false;
  if (quant.token_group == 1) return quant.channel_group % 16 == 0;
  // So many groups of a block have room (kParameterFloats).
  return quant.channel_group == 1 && quant.token_group >= 32 &&
         segment.block_size % quant.token_group == 0;
}

// Of keys one parameter must serve a whole block of a channel: of shorter groups a window may leave
// one in a block or two, and then the way to read it must not depend on that. Of values one must
// serve all channels of a token.
bool may_fold(const KVCodes& codes, bool keys, int32_t head_dim) {
  if (codes.bits < 4) return false;
  if (!keys) return !codes.by_channel && codes.parameters == 1;
  return codes.by_channel && codes.token_group >= kTileKeys && head_dim <= kMostFoldedChannels;
}

// Tokens that follow `slot` at a constant stride, itself included: to the end of its page, of the
// ring, or of what is asked.
int64_t run_length(const KVSegment& segment, int64_t slot, int64_t asked) {
  int64_t run = std::min(asked, segment.block_size - slot % segment.block_size);
  if (segment.wrap > 0) run = std::min(run, segment.wrap - slot);
  return run;
}

// Where the parameters of a run of codes begin.
KVRunParameters run_parameters(const KVView& view, const KVSide& side, const KVCodes& codes,
                               const BlockAsk& ask, const KVRun& run) {
  const KVQuant& quant = side.quant;
  const KVSegment& segment = view.segment[run.segment];
  const auto at = [](int64_t base, int64_t offset) {
    return reinterpret_cast<const char*>(static_cast<uintptr_t>(base) +
                                         static_cast<uintptr_t>(offset));
  };
  if (quant.order == KVOrder::kFlatRows) {
    const int64_t token = int64_t{ask.kv_head} * quant.flat_tokens[ask.row] + run.slot;
    const int64_t offset = token * codes.token_stride;
    return {at(quant.scale_table[ask.row], offset),
            codes.symmetric ? nullptr : at(quant.zero_table[ask.row], offset), 0};
  }
  const int64_t page = run.slot / segment.block_size, within = run.slot % segment.block_size;
  const int64_t offset = segment.block_table[int64_t{ask.row} * segment.table_stride + page] +
                         ask.kv_head * quant.head_stride +
                         within / quant.token_group * quant.token_stride;
  return {at(static_cast<int64_t>(quant.scale), offset),
          at(static_cast<int64_t>(quant.zero), offset),
          static_cast<int32_t>(within % quant.token_group)};
}

// Points the lanes of the run at its tokens on one side.
void point_side(const KVView& view, const KVSide& side, const BlockAsk& ask, const KVRun& run,
                int32_t number, KVLanes& lanes) {
  const KVSegment& segment = view.segment[run.segment];
  const uintptr_t first = token_address(segment, side, ask.row, ask.kv_head, run.slot);
  const bool read = lanes.codes != nullptr && lanes.codes->segment == run.segment;
  const KVFormat format = read ? KVFormat::kCodes : format_of(side);
  for (int32_t i = 0; i < run.count; ++i) {
    const auto step = static_cast<uintptr_t>(i) * static_cast<uintptr_t>(side.token_stride);
    lanes.at[run.lane + i] = reinterpret_cast<const void*>(first + step);
    lanes.format[run.lane + i] = format;
  }
  if (read) lanes.run[number] = run_parameters(view, side, *lanes.codes, ask, run);
}

void point_run(const KVView& view, const BlockAsk& ask, const KVRun& run, KVBlock& block) {
  const KVSegment& segment = view.segment[run.segment];
  point_side(view, segment.k, ask, run, block.num_runs, block.k);
  point_side(view, segment.v, ask, run, block.num_runs, block.v);
  block.present |= (run.count == kTileKeys ? ~uint64_t{0} : (uint64_t{1} << run.count) - 1)
                   << run.lane;
  block.run[block.num_runs++] = run;
}

void locate_in_segment(const KVView& view, int32_t number, const BlockAsk& ask, KVBlock& block) {
  const KVSegment& segment = view.segment[number];
  const int64_t first = segment.first_position[ask.row];
  int64_t position = std::max({first, ask.first, ask.wanted.begin});
  const int64_t end =
      std::min({first + segment.len[ask.row], ask.first + kTileKeys, ask.wanted.end});
  while (position < end) {
    int64_t slot = segment.begin[ask.row] + (position - first);
    if (segment.wrap > 0) slot %= segment.wrap;
    const int64_t count = run_length(segment, slot, end - position);
    const auto lane = static_cast<int32_t>(position - ask.first);
    point_run(view, ask, {number, lane, static_cast<int32_t>(count), slot}, block);
    position += count;
  }
}

// Lanes that the view does not hold read zeros in their neighbours' format, so that a group of
// lanes has one format wherever the stored ones do.
void fill_absent(const void* zeros, KVBlock& block) {
  if (block.present == ~uint64_t{0} || block.present == 0) return;
  const int first = __builtin_ctzll(block.present);
  KVFormat k_format = block.k.format[first], v_format = block.v.format[first];
  for (int lane = 0; lane < kTileKeys; ++lane) {
    if ((block.present >> lane & 1) != 0) {
      k_format = block.k.format[lane], v_format = block.v.format[lane];
    } else {
      block.k.at[lane] = block.v.at[lane] = zeros;
      block.k.format[lane] = k_format, block.v.format[lane] = v_format;
    }
  }
}

}  // namespace

KVCodes codes_of(const KVView& view, KVSide KVSegment::*side) {
  for (int32_t s = 0; s < view.num_segments; ++s) {
    const KVQuant& quant = (view.segment[s].*side).quant;
    if (!are_readable(view, view.segment[s], quant)) continue;
    KVCodes codes{.segment = s,
                  .bits = quant.bits,
                  .zero_first = quant.form != KVForm::kScaleShift,
                  .symmetric = quant.form == KVForm::kSymmetric,
                  .dtype = quant.dtype};
    const bool flat = quant.order == KVOrder::kFlatRows;
    codes.by_channel = !flat && quant.channel_group == 1;
    codes.token_group = flat ? 1 : quant.token_group;
    codes.channel_group = flat ? quant.group_size : quant.channel_group;
    codes.parameters = (view.head_dim + codes.channel_group - 1) / codes.channel_group;
    codes.token_stride = flat ? codes.parameters * static_cast<int64_t>(dtype_size(quant.dtype))
                              : quant.token_stride;
    codes.may_fold = may_fold(codes, side == &KVSegment::k, view.head_dim);
    return codes;
  }
  return {};
}

uintptr_t token_address(const KVSegment& segment, const KVSide& side, int32_t row, int32_t kv_head,
                        int64_t slot) {
  return kv_address(segment, side, {row, slot, kv_head});
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
  block.num_runs = 0;
  for (int32_t s = 0; s < view.num_segments; ++s) {
    const KVSegment& segment = view.segment[s];
    if (segment.len == nullptr || segment.len[ask.row] <= 0) continue;
    locate_in_segment(view, s, ask, block);
  }
  fill_absent(zeros, block);
}

void stage_lanes(const KVView& view, const BlockAsk& ask, KVSide KVSegment::*side, int64_t stride,
                 float* rows, KVBlock& block) {
  KVLanes& lanes = side == &KVSegment::k ? block.k : block.v;
  bool staged = false;
  for (int32_t i = 0; i < block.num_runs; ++i) {
    const KVRun& run = block.run[i];
    const KVSegment& segment = view.segment[run.segment];
    if (lanes.format[run.lane] != KVFormat::kPacked) continue;
    staged = true;
    for (int32_t t = 0; t < run.count; ++t) {
      float* row = rows + (run.lane + t) * stride;
      kv_dequantize(view, segment, segment.*side, {ask.row, run.slot + t, ask.kv_head}, row);
      lanes.at[run.lane + t] = row;
      lanes.format[run.lane + t] = KVFormat::kF32;
    }
  }
  // Absent lanes have their neighbours' format, and what they point to is zeros in every format.
  if (staged)
    std::replace(lanes.format, lanes.format + kTileKeys, KVFormat::kPacked, KVFormat::kF32);
}

}  // namespace larder::cpu
