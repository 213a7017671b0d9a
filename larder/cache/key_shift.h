// Turning stored keys, for the context shift of layers that keep K (see ContextShift).
#pragma once

#include "larder/cache/layer.h"

namespace larder {

// Refuses a shift that a row of `len` tokens cannot have, and angles for more channels than a head
// has.
void check_shift(const ContextShift& shift, int64_t len, int32_t head_dim);

// Turns one head's key in place: pairs (i, i + half), i < half = cos.size().
void turn_key(float* key, std::span<const float> cos, std::span<const float> sin) noexcept;
// The same for a key stored as f32, f16 or bf16 at any alignment: widened, turned in f32, rounded
// once.
void turn_key(std::byte* key, DType dtype, std::span<const float> cos,
              std::span<const float> sin) noexcept;

}  // namespace larder
