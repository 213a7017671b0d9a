// Random codes and parameters in the layouts of kv_view.h, and what they stand for: written from
// the header's formulas alone, so that larder's reading is held against it.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "larder/tensor/kv_view.h"

namespace larder::test {

// The memory of one side of a segment.
struct KVSideStore {
  std::vector<std::byte> bytes;          // all pages
  std::vector<std::byte> scales, zeros;  // of flat orders, all rows
  std::vector<int64_t> scale_table, zero_table;
  std::vector<int32_t> flat_tokens;
};

void put(std::byte* at, DType dtype, float value);  // f32, f16, bf16
float get(uintptr_t at, DType dtype);
int64_t token_bytes(const KVSide& side, int64_t head_dim);
// Bytes that one side needs of a page: codes or elements, and aligned parameters behind them.
int64_t page_size(const KVSide& side, int64_t heads, int64_t block_size, int64_t head_dim);
// Where the token of row `row` in slot `slot` begins, head 0.
uintptr_t slot_address(const KVSegment& segment, const KVSide& side, int64_t row, int64_t slot);

struct CodesLayout {
  int64_t heads, head_dim, batch, slots, page_bytes;
  bool heads_inside;
};

// Fills the pages with random codes and places their parameters, all NaN. Does nothing for a side
// that is not quantized. Needs: `side` and the table point into `store`.
void lay_out_codes(KVSideStore& store, const KVSegment& segment, KVSide& side,
                   const CodesLayout& layout, std::mt19937& random);

struct CodedElement {
  int64_t row, slot, head, channel;
  int64_t heads, head_dim;  // of the tensor
};

// Gives the element's group random parameters where it has none.
void draw_parameters(const KVSegment& segment, const KVQuant& quant, const CodedElement& e,
                     std::mt19937& random);
float widened(const KVSegment& segment, const KVSide& side, const CodedElement& e);

}  // namespace larder::test
