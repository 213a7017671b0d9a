#include "tests/support/kv_decode.h"

#include <cstring>

namespace larder::test {
namespace {

struct Token {
  const KVView& view;
  const KVSegment& segment;
  const KVSide& side;
  int32_t row;
  int64_t slot;
  int32_t head;

  uintptr_t block() const {
    const int64_t index = int64_t{row} * segment.table_stride + slot / segment.block_size;
    return static_cast<uintptr_t>(segment.block_table[index]);
  }
  int64_t within() const { return slot % segment.block_size; }
};

template <class T>
T at(uintptr_t address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
  return value;
}

float number(uintptr_t array, int64_t index, DType dtype) {
  const auto address = array + static_cast<uintptr_t>(index) * dtype_size(dtype);
  if (dtype == DType::kF32) return at<float>(address);
  const auto bits = at<uint16_t>(address);
  return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

int64_t flat_group(const Token& t, int64_t d) {
  const KVQuant& q = t.side.quant;
  const int64_t tokens = q.flat_tokens[t.row], dim = t.view.head_dim;
  const int64_t heads = t.view.num_kv_heads;
  const int64_t e = (t.head * tokens + t.slot) * dim + d;
  if (q.order == KVOrder::kFlatRows) return e / q.group_size;
  if (q.order == KVOrder::kFlatColumns) return e % (heads * tokens * dim / q.group_size);
  return d * (heads * tokens / q.group_size) + e / dim / q.group_size;
}

float parameter(const Token& t, int64_t d, bool zero) {
  const KVQuant& q = t.side.quant;
  if (q.order != KVOrder::kAligned) {
    const int64_t run = (zero ? q.zero_table : q.scale_table)[t.row];
    return number(static_cast<uintptr_t>(run), flat_group(t, d), q.dtype);
  }
  const uintptr_t address = (zero ? q.zero : q.scale) + t.block() +
                            static_cast<uintptr_t>(t.head * q.head_stride) +
                            static_cast<uintptr_t>(t.within() / q.token_group * q.token_stride);
  return number(address, d / q.channel_group, q.dtype);
}

float element(const Token& t, int64_t d) {
  const KVQuant& q = t.side.quant;
  const uintptr_t data = t.side.data + t.block() +
                         static_cast<uintptr_t>(t.head * t.side.head_stride) +
                         static_cast<uintptr_t>(t.within() * t.side.token_stride);
  if (q.bits == 0) return number(data, d, t.side.dtype);
  int code = 0;
  for (int64_t bit = d * q.bits; bit < (d + 1) * q.bits; ++bit) {
    const int set = at<uint8_t>(data + static_cast<uintptr_t>(bit / 8)) >> (bit % 8) & 1;
    code |= set << (bit - d * q.bits);
  }
  const auto value = static_cast<float>(code);
  const float scale = parameter(t, d, false);
  if (q.form == KVForm::kSymmetric) return (value - static_cast<float>(1 << (q.bits - 1))) * scale;
  const float zero = parameter(t, d, true);
  return q.form == KVForm::kScaleShift ? scale * value - zero : (value - zero) * scale;
}

}  // namespace

int64_t view_len(const KVView& view, int32_t row) {
  int64_t tokens = 0;
  for (int32_t s = 0; s < view.num_segments; ++s) tokens += view.segment[s].len[row];
  return tokens;
}

std::vector<float> decode_view(const KVView& view, int32_t row, Side side) {
  std::vector<float> values;
  for (int32_t head = 0; head < view.num_kv_heads; ++head) {
    for (int32_t s = 0; s < view.num_segments; ++s) {
      const KVSegment& segment = view.segment[s];
      for (int64_t i = 0; i < segment.len[row]; ++i) {
        int64_t slot = segment.begin[row] + i;
        if (segment.wrap > 0) slot %= segment.wrap;
        const Token token{view, segment, side == Side::kKeys ? segment.k : segment.v,
                          row,  slot,    head};
        for (int64_t d = 0; d < view.head_dim; ++d) values.push_back(element(token, d));
      }
    }
  }
  return values;
}

}  // namespace larder::test
