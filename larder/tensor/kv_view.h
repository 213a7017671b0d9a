// Where stored K and V lie: plain data that caches make and attention reads. It says where tokens
// lie, never how sums are cut. docs/kv_view.md draws it byte by byte.
#pragma once

#include <cstdint>

#include "larder/tensor/dtype.h"

namespace larder {

// How codes become numbers. All arithmetic is f32, each operation rounded.
enum class KVForm : uint8_t {
  kScaleShift,  // scale * code - shift          (quanto; `zero` holds the shift)
  kZeroScale,   // (code - zero) * scale         (hqq)
  kSymmetric,   // (code - 2^(bits - 1)) * scale (no `zero`)
};

// Which group a code belongs to. The flat orders are those of transformers' quantizers: they number
// the elements of a row's quantized tensor [num_kv_heads, flat_tokens, head_dim] by
//   e = (h * flat_tokens + s) * head_dim + d
// and know nothing of tokens or heads; group_size counts elements (of a channel, for
// kFlatChannels).
enum class KVOrder : uint8_t {
  kAligned,       // by token and channel, see KVQuant::token_group; its parameters lie in the block
  kFlatRows,      // e / group_size                     (quanto axis 0, hqq axis 1)
  kFlatColumns,   // e % (elements / group_size)        (hqq axis 0)
  kFlatChannels,  // d * groups + (e / head_dim) / group_size, groups = heads * flat_tokens /
                  // group_size
                  //                                    (quanto axis -1)
};

// Parameters of quantized storage. `bits` 0 says that the side is not quantized.
struct KVQuant {
  int32_t bits = 0;  // 1, 2, 3, 4 or 8
  KVForm form = KVForm::kScaleShift;
  KVOrder order = KVOrder::kAligned;
  DType dtype = DType::kF32;  // of scales and zeros: f32, f16, bf16
  // kAligned: the parameter of (slot s, head h, channel d) lies at
  //   scale + block_table[b][s / block_size] + h * head_stride
  //     + (s % block_size / token_group) * token_stride + (d / channel_group) * element size
  // and likewise from `zero`. Per token: token_group 1. Per channel over token ranges (KIVI):
  // channel_group 1, token_group the length of a range, which divides block_size.
  int32_t token_group = 1, channel_group = 1;
  uintptr_t scale = 0, zero = 0;
  int64_t head_stride = 0, token_stride = 0;  // bytes
  // Flat orders: one run of parameters a row of the step.
  int32_t group_size = 0;
  const int64_t* scale_table = nullptr;  // [batch] addresses
  const int64_t* zero_table = nullptr;
  const int32_t* flat_tokens = nullptr;  // [batch]
};

// One of K and V within a segment. The element (row b, token slot s, head h, channel d) lies at
//   data + block_table[b][s / block_size] + h * head_stride + (s % block_size) * token_stride + d *
//   element size
// `data` is an address, or, where the table holds addresses, an offset within each block. Strides
// are in bytes. Where quant.bits > 0 a token's head is a run of codes instead: code d is bits
// [d * bits, (d + 1) * bits) of a little-endian string, padded to a whole byte; `dtype` then says
// what the codes stand for and is not read.
struct KVSide {
  uintptr_t data = 0;
  DType dtype = DType::kF32;  // f32, f16, bf16
  int64_t head_stride = 0, token_stride = 0;
  KVQuant quant{};
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
  // K is stored turned by the normalised Hadamard matrix (tensor/hadamard.h); attend() turns q
  // alike, in place, which leaves q.k as it was.
  bool hadamard = false;
};

}  // namespace larder
