// Sizes that follow from a config alone: bytes of a token's keys and values, without rounding to
// blocks or allocator overhead, and numbers of weights.
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

// Numbers in all weights, a tied head counted once. Needs: a resolved config.
inline int64_t num_parameters(const DecoderConfig& c) {
  const int64_t q = checked_mul(c.num_attention_heads, c.head_dim),
                kv = checked_mul(c.num_key_value_heads, c.head_dim);
  const int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const int64_t attention =
      checked_mul(hidden, 2 * (q + kv)) + (c.attention_bias ? q + 2 * kv + hidden : 0);
  const int64_t mlp = checked_mul(hidden, 3 * inner) + (c.mlp_bias ? 2 * inner + hidden : 0);
  const int64_t norms = (c.post_norms ? 4 : 2) * hidden;
  const int64_t embeddings = checked_mul(c.vocab_size, hidden) * (c.tie_word_embeddings ? 1 : 2);
  return checked_add(embeddings + hidden,
                     checked_mul(c.num_hidden_layers, attention + mlp + norms));
}

}  // namespace larder
