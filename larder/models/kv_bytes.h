// Bytes that a token's keys and values take, without rounding to blocks or allocator overhead.
#pragma once

#include "larder/models/decoder_config.h"
#include "larder/tensor/dtype.h"
#include "larder/tensor/shape.h"

namespace larder {

// In one layer. Needs: a resolved config.
inline int64_t kv_bytes_per_token_per_layer(const DecoderConfig& config, DType cache_dtype) {
  const int64_t channels = checked_mul(config.num_key_value_heads, config.head_dim);
  return checked_mul(channels, 2 * static_cast<int64_t>(dtype_size(cache_dtype)));
}

// In all layers, as long as no layer drops the token.
inline int64_t kv_bytes_per_token(const DecoderConfig& config, DType cache_dtype) {
  return checked_mul(kv_bytes_per_token_per_layer(config, cache_dtype),
                     static_cast<int64_t>(config.layer_types.size()));
}

}  // namespace larder
