// How a quantized layer cuts a row into groups and blocks. docs/caches.md draws it.
#pragma once

#include <algorithm>

#include "larder/cache/layer.h"
#include "larder/cache/quantizer.h"

namespace larder {

struct QuantSettings {
  Quantizer k, v;
  int64_t residual_length = 128;
  bool append_only = false;
};

// One of K and V. Parameters are numbers of the cache's dtype.
//   aligned  a group lies within token_group tokens of one head; its parameters are in the block of
//            its tokens
//   flat     groups cross tokens and heads; the parameters of a row are one run, in another block
struct QuantSideLayout {
  QuantSideLayout(const Quantizer& quantizer, const LayerSpec& spec, bool append_only,
                  const char* what);

  Quantizer quantizer;
  bool aligned = false;
  bool appends = false;  // old codes stay at a flush; else the whole row is quantized again
  int32_t token_group = 1, channel_group = 1;  // aligned: what shares a parameter
  int64_t unit = 1;                            // the tokens quantized so far are a multiple of this
  int64_t code_bytes = 0;                      // one head of one token
  // Byte offsets within a block, and strides of the parameters (aligned).
  int64_t codes_at = 0, scale_at = 0, zero_at = 0;
  int64_t head_stride = 0, param_head_stride = 0, param_token_stride = 0;
  int64_t groups(int64_t elements) const { return elements / quantizer.group_size; }
};

// A block of codes is one allocation:
//   K codes [num_kv_heads, block_size, code_bytes], V codes, then, of the aligned sides, K scales
//   [num_kv_heads, block_size / token_group, head_dim / channel_group], K zeros, V scales, V zeros
// A block of exact tokens: K [num_kv_heads, kExactBlock, head_dim], V.
struct QuantLayout {
  static constexpr int32_t kExactBlock = 64;
  QuantLayout(const QuantSettings& settings, const LayerSpec& spec, DType dtype);

  const QuantSideLayout& side(int which) const { return which == 0 ? k : v; }
  int64_t elements(int64_t tokens) const { return tokens * heads * head_dim; }
  // The run of a row's flat parameters: K scales, K zeros, V scales, V zeros of the flat sides.
  int64_t flat_bytes(int64_t tokens) const;
  int64_t flat_scale_at(int which, int64_t tokens) const;
  int64_t flat_zero_at(int which, int64_t tokens) const;
  bool has_flat() const { return !k.aligned || !v.aligned; }
  bool within_tokens() const { return !has_flat() && k.token_group == 1 && v.token_group == 1; }
  int64_t blocks_for(int64_t tokens) const { return ceil_div(tokens, block_size); }
  // Tokens whose codes a flush writes anew begin here.
  int64_t flush_from(const QuantSideLayout& side, int64_t quantized) const {
    return side.appends ? quantized / side.token_group * side.token_group : 0;
  }
  int64_t flush_from(int64_t quantized) const {
    return std::min(flush_from(k, quantized), flush_from(v, quantized));
  }
  // What a flush to `tokens` needs besides: values, codes and parameters of one side at a time.
  int64_t scratch_bytes(int64_t quantized, int64_t tokens) const;
  int64_t chunk(const QuantSideLayout& side, int64_t tokens) const;

  int32_t heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  int64_t residual_length = 0;
  QuantSideLayout k, v;
  int64_t unit = 1;  // of both sides
  int32_t block_size = 64;
  int64_t block_bytes = 0;
  int64_t exact_token_bytes = 0, exact_head_bytes = 0, exact_side_bytes = 0;
};

}  // namespace larder
