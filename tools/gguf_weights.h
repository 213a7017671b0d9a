// The numbers of GGUF tensors: ggml's block formats, and the order of rows that its rope wants.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/gguf.h"

namespace larder::tools {

// One row (the last axis) as f32. Q8_0: f16 scale, 32 int8. Q4_0: f16 scale, 16 bytes, value
// (nibble - 8) * scale. Q4_1: f16 scale, f16 minimum, 16 bytes, value nibble * scale + minimum. Low
// nibbles are elements 0..15 of the block, high ones 16..31. Needs: out.size() is the row's length.
void dequantize_row(const GgufTensor& tensor, int64_t row, std::span<float> out);

// The whole tensor, rounded to nearest even bf16. With `rope_heads` above 0 the rows are those of
// so many heads whose two rotated halves llama.cpp interleaves (row 2j is channel j, row 2j + 1
// channel j + head_dim / 2); they are put back in order. Needs: rows divide by 2 * rope_heads.
std::vector<uint16_t> to_bf16(const GgufTensor& tensor, int64_t rope_heads);

}  // namespace larder::tools
