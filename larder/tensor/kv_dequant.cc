#include "larder/tensor/kv_dequant.h"

#include <algorithm>
#include <cstring>

#include "larder/tensor/packed_codes.h"

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

// The group numbers of a token's channels, in order and without dividing: the first `left`
// channels are in group `index`, each `period` after them in one that is a `step` further; group
// `limit` is group 0 again.
struct GroupWalk {
  uintptr_t scale = 0, zero = 0;  // what the numbers count from
  int64_t index = 0, left = 1, period = 1, step = 1, limit = -1;

  void advance() {
    left = period;
    index += step;
    if (index == limit) index = 0;
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
  if (quant.form != KVForm::kSymmetric)
    walk.zero = static_cast<uintptr_t>(quant.zero_table[token.row]);
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

// Eight codes lie in as many bytes as a code has bits.
template <int kBits>
void unpack_as(const std::byte* codes, int64_t count, float* out) {
  int64_t d = 0;
  for (; d + 8 <= count; d += 8, codes += kBits) {
    uint32_t word = 0;
    std::memcpy(&word, codes, kBits);
    for (int i = 0; i < 8; ++i, word >>= kBits)
      out[d + i] = static_cast<float>(static_cast<int32_t>(word & ((1u << kBits) - 1)));
  }
  for (int64_t i = 0; d + i < count; ++i) out[d + i] = code_at(codes, i, kBits);
}

void unpack(const std::byte* codes, int32_t bits, int64_t count, float* out) {
  switch (bits) {
    case 1:
      return unpack_as<1>(codes, count, out);
    case 2:
      return unpack_as<2>(codes, count, out);
    case 3:
      return unpack_as<3>(codes, count, out);
    case 4:
      return unpack_as<4>(codes, count, out);
    default:
      for (int64_t d = 0; d < count; ++d) out[d] = static_cast<uint8_t>(codes[d]);
  }
}

// Codes of one group to what they stand for.
void widen(const KVQuant& quant, float scale, float zero, int64_t count, float* x) {
  switch (quant.form) {
    case KVForm::kScaleShift:
      for (int64_t i = 0; i < count; ++i) x[i] = scale * x[i] - zero;
      return;
    case KVForm::kZeroScale:
      for (int64_t i = 0; i < count; ++i) x[i] = (x[i] - zero) * scale;
      return;
    default:
      const auto middle = static_cast<float>(1 << (quant.bits - 1));
      for (int64_t i = 0; i < count; ++i) x[i] = (x[i] - middle) * scale;
  }
}

}  // namespace

uintptr_t kv_address(const KVSegment& segment, const KVSide& side, const KVToken& token) {
  const int64_t page = token.slot / segment.block_size, within = token.slot % segment.block_size;
  const int64_t offset = segment.block_table[int64_t{token.row} * segment.table_stride + page] +
                         token.head * side.head_stride + within * side.token_stride;
  return side.data + static_cast<uintptr_t>(offset);
}

void kv_dequantize(const KVView& view, const KVSegment& segment, const KVSide& side,
                   const KVToken& token, float* out) {
  const KVQuant& quant = side.quant;
  unpack(reinterpret_cast<const std::byte*>(kv_address(segment, side, token)), quant.bits,
         view.head_dim, out);
  GroupWalk walk = quant.order == KVOrder::kAligned ? aligned_walk(segment, quant, token)
                                                    : flat_walk(view, quant, token);
  for (int64_t d = 0; d < view.head_dim; d += walk.left, walk.advance()) {
    const float scale = read_parameter(quant.dtype, walk.scale, walk.index);
    const float zero =
        quant.form == KVForm::kSymmetric ? 0 : read_parameter(quant.dtype, walk.zero, walk.index);
    widen(quant, scale, zero, std::min(walk.left, view.head_dim - d), out + d);
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
