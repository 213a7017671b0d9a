#include "tests/support/shown_keys.h"

#include <gtest/gtest.h>

#include <cstring>

namespace larder::test {
namespace {

float number_at(const KVSide& side, uintptr_t address, int64_t index) {
  const auto* at = reinterpret_cast<const std::byte*>(address) +
                   index * static_cast<int64_t>(dtype_size(side.dtype));
  if (side.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return side.dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

float number_of(const KVView& view, const KVSegment& segment, const KVSide& side, int32_t row,
                int64_t slot) {
  const int64_t entry = int64_t{row} * segment.table_stride + slot / segment.block_size;
  const uintptr_t token =
      side.data + static_cast<uintptr_t>(segment.block_table[entry] +
                                         slot % segment.block_size * side.token_stride);
  const float number = number_at(side, token, 0);
  for (int32_t head = 0; head < view.num_kv_heads; ++head) {
    for (int32_t d = 0; d < view.head_dim; ++d) {
      EXPECT_EQ(number_at(side, token + static_cast<uintptr_t>(head * side.head_stride), d), number)
          << "slot " << slot << " head " << head << " channel " << d;
    }
  }
  return number;
}

}  // namespace

std::map<int64_t, float> shown(const KVView& view, int32_t row) {
  std::map<int64_t, float> keys;
  for (int32_t s = 0; s < view.num_segments; ++s) {
    const KVSegment& segment = view.segment[s];
    EXPECT_LE(segment.len[row], segment.max_len);
    for (int64_t i = 0; i < segment.len[row]; ++i) {
      int64_t slot = segment.begin[row] + i;
      if (segment.wrap > 0) slot %= segment.wrap;
      const int64_t position = segment.first_position[row] + i;
      EXPECT_TRUE(keys.empty() || keys.rbegin()->first + 1 == position);
      keys[position] = number_of(view, segment, segment.k, row, slot);
      EXPECT_EQ(number_of(view, segment, segment.v, row, slot), keys[position] + 0.5f);
    }
  }
  return keys;
}

}  // namespace larder::test
