#include "larder/tensor/kv_dequant.h"

#include <cstring>

namespace larder {
namespace {

template <class T>
T read(uintptr_t base, int64_t index) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(base) + index * int64_t{sizeof value},
              sizeof value);
  return value;
}

float read_parameter(DType dtype, uintptr_t base, int64_t index) {
  switch (dtype) {
    case DType::kF16:
      return f16_to_f32(read<uint16_t>(base, index));
    case DType::kBF16:
      return bf16_to_f32(read<uint16_t>(base, index));
    default:
      return read<float>(base, index);
  }
}

// The group numbers of a token's channels, one after the other and without dividing: `index` is
// the current one; after `left` more channels it takes a `step`, and then one every `period`; at
// `limit` it begins again at 0.
struct GroupWalk {
  uintptr_t scale = 0, zero = 0;  // what the numbers count from
  int64_t index = 0, left = 1, period = 1, step = 1, limit = -1;

  // Whether the group changed.
  bool advance() {
    if (--left > 0) return false;
    left = period;
    index += step;
    if (index == limit) index = 0;
    return true;
  }
};

GroupWalk aligned_walk(const KVSegment& segment, const KVQuant& quant, const KVToken& token) {
  const int64_t page = token.slot / segment.block_size, within = token.slot % segment.block_size;
  const auto offset = static_cast<uintptr_t>(
      segment.block_table[int64_t{token.row} * segment.table_stride + page] +
      token.head * quant.head_stride + within / quant.token_group * quant.token_stride);
  return {.scale = quant.scale + offset,
          .zero = quant.zero + offset,
          .left = quant.channel_group,
          .period = quant.channel_group};
}

GroupWalk flat_walk(const KVView& view, const KVQuant& quant, const KVToken& token) {
  GroupWalk walk{.scale = static_cast<uintptr_t>(quant.scale_table[token.row])};
  if (quant.zero_table != nullptr) walk.zero = static_cast<uintptr_t>(quant.zero_table[token.row]);
  const int64_t tokens = quant.flat_tokens[token.row], group = quant.group_size;
  const int64_t vector = token.head * tokens + token.slot, first = vector * view.head_dim;
  if (quant.order == KVOrder::kFlatRows) {
    walk.index = first / group;
    walk.left = group - first % group, walk.period = group;
  } else if (quant.order == KVOrder::kFlatColumns) {
    walk.limit = view.num_kv_heads * tokens * view.head_dim / group;
    walk.index = first % walk.limit;
  } else {
    walk.index = vector / group;
    walk.step = view.num_kv_heads * tokens / group;
  }
  return walk;
}

}  // namespace

uintptr_t kv_address(const KVSegment& segment, const KVSide& side, const KVToken& token) {
  const int64_t page = token.slot / segment.block_size, within = token.slot % segment.block_size;
  const int64_t offset = segment.block_table[int64_t{token.row} * segment.table_stride + page] +
                         token.head * side.head_stride + within * side.token_stride;
  return side.data + static_cast<uintptr_t>(offset);
}

int32_t kv_code(const uint8_t* codes, int32_t bits, int64_t d) {
  const int64_t bit = d * bits, shift = bit % 8;
  uint32_t word = codes[bit / 8];
  if (shift + bits > 8) word |= uint32_t{codes[bit / 8 + 1]} << 8;
  return static_cast<int32_t>(word >> shift & ((1u << bits) - 1));
}

float kv_value(const KVQuant& quant, int32_t code, float scale, float zero) {
  switch (quant.form) {
    case KVForm::kScaleShift:
      return scale * static_cast<float>(code) - zero;
    case KVForm::kZeroScale:
      return (static_cast<float>(code) - zero) * scale;
    default:
      return static_cast<float>(code - (1 << (quant.bits - 1))) * scale;
  }
}

void kv_dequantize(const KVView& view, const KVSegment& segment, const KVSide& side,
                   const KVToken& token, float* out) {
  const KVQuant& quant = side.quant;
  const auto* codes = reinterpret_cast<const uint8_t*>(kv_address(segment, side, token));
  GroupWalk walk = quant.order == KVOrder::kAligned ? aligned_walk(segment, quant, token)
                                                    : flat_walk(view, quant, token);
  float scale = 0, zero = 0;
  bool changed = true;
  for (int64_t d = 0; d < view.head_dim; ++d) {
    if (changed) {
      scale = read_parameter(quant.dtype, walk.scale, walk.index);
      if (quant.form != KVForm::kSymmetric)
        zero = read_parameter(quant.dtype, walk.zero, walk.index);
    }
    out[d] = kv_value(quant, kv_code(codes, quant.bits, d), scale, zero);
    changed = walk.advance();
  }
}

const char* quant_problem(const KVQuant& quant) {
  const int32_t bits = quant.bits;
  if (bits != 1 && bits != 2 && bits != 3 && bits != 4 && bits != 8)
    return "codes must have 1, 2, 3, 4 or 8 bits";
  if (quant.dtype != DType::kF32 && quant.dtype != DType::kF16 && quant.dtype != DType::kBF16)
    return "scales and zeros must be f32, f16 or bf16";
  const bool aligned = quant.order == KVOrder::kAligned;
  if (aligned ? quant.token_group < 1 || quant.channel_group < 1 : quant.group_size < 1)
    return "a group must have at least one element";
  return nullptr;
}

}  // namespace larder
