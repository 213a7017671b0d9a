// Reading quantized keys and values one token at a time: the plain definition of what codes stand
// for. Eager attention and the reference set read so, fast sets where they have no code for a
// format; tests hold the fast code against it.
#pragma once

#include <cstdint>

#include "larder/tensor/kv_view.h"

namespace larder {

// One head of one stored token. `slot` is a place in the storage: of a ring, below `wrap`.
struct KVToken {
  int32_t row = 0;  // of the step
  int64_t slot = 0;
  int64_t head = 0;
};

// Where its elements (or codes) begin. In 64 bits throughout (cases 25).
uintptr_t kv_address(const KVSegment& segment, const KVSide& side, const KVToken& token);

// What a quantized side's codes stand for, out[0 .. view.head_dim), in f32 with each operation
// rounded. Needs: quant_problem() is null.
void kv_dequantize(const KVView& view, const KVSegment& segment, const KVSide& side,
                   const KVToken& token, float* out);

// What is wrong with the parameters of a quantized side, or null: widths, types, groups.
const char* quant_problem(const KVQuant& quant);

}  // namespace larder
