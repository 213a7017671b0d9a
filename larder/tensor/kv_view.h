// Where stored K and V lie: plain data that caches make and attention reads. It says where tokens
// lie, never how sums are cut. docs/kv_view.md draws it byte by byte.
#pragma once

#include <cstdint>

#include "larder/tensor/dtype.h"

namespace larder {

// One of K and V within a segment. The element (row b, token slot s, head h, channel d) lies at
//   data + block_table[b][s / block_size] + h * head_stride + (s % block_size) * token_stride + d *
//   element size
// `data` is an address, or, where the table holds addresses, an offset within each block. Strides
// are in bytes.
struct KVSide {
  uintptr_t data = 0;
  DType dtype = DType::kF32;  // f32, f16, bf16
  int64_t head_stride = 0, token_stride = 0;
};

// A run of tokens with consecutive positions, oldest first, kept alike for every row of the step.
// All arrays have one entry a row of the step (its batch), lie in memory of the device, and are
// valid until commit.
struct KVSegment {
  KVSide k, v;
  const int64_t* block_table =
      nullptr;               // [batch, table_stride] byte offsets; contiguous = one block a row
  int32_t table_stride = 0;  // entries between the rows of the table
  int32_t block_size = 0;    // tokens a block
  int32_t wrap = 0;          // ring: slot modulo this; 0 = linear
  const int64_t* first_position = nullptr;  // [batch] position of the first token to read
  const int32_t* begin = nullptr;           // [batch] its slot
  const int32_t* len = nullptr;             // [batch] tokens to read
  int32_t max_len = 0;  // at least every len; for sizing work before the lengths are known
};

// Up to three segments, in the order of their positions (dense history, exact residual, new).
// Number, order and format are fixed for a layer kind; an unused one has length 0.
struct KVView {
  static constexpr int kMaxSegments = 3;
  int32_t num_segments = 0, num_kv_heads = 0, head_dim = 0;
  KVSegment segment[kMaxSegments]{};
};

}  // namespace larder
