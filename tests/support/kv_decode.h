// What a KVView shows, token by token, written down from the formulas of kv_view.h and from nothing
// else.
#pragma once

#include <vector>

#include "larder/tensor/kv_view.h"

namespace larder::test {

enum class Side { kKeys, kValues };

// [num_kv_heads, tokens, head_dim] of a row of the step, oldest token first. Codes become numbers
// in f32.
std::vector<float> decode_view(const KVView& view, int32_t row, Side side);

// Tokens that the view shows of the row.
int64_t view_len(const KVView& view, int32_t row);

}  // namespace larder::test
