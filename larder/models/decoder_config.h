// What the generic decoder needs to know about a model, after a family's defaults were applied to
// its config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "larder/base/json_fwd.h"
#include "larder/models/rope.h"
#include "larder/tensor/kernels.h"

namespace larder {

enum class LayerType : uint8_t { kFullAttention, kSlidingAttention, kChunkedAttention };

// Field names are config.json's. Everything is resolved: no optional is left to the reader but
// where null means "off".
struct DecoderConfig {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  Activation hidden_act = Activation::kSilu;
  bool attention_bias = false;  // q, k, v and o projections
  bool mlp_bias = false;
  std::vector<LayerType> layer_types;  // one a layer
  int64_t sliding_window = 0;          // of the sliding layers; 0 when there is none
  int64_t attention_chunk_size = 0;    // of the chunked layers; 0 when there is none
  RopeConfig rope;
  double attention_scale = 0;          // multiplies q.k
  double attn_logit_softcapping = 0;   // 0 = none
  double final_logit_softcapping = 0;  // 0 = none
  double embedding_multiplier = 1;     // Gemma: sqrt(hidden_size)
  double norm_weight_offset = 0;       // Gemma multiplies by 1 + weight
  bool post_norms = false;             // Gemma2: norms after attention and after the MLP too
  std::optional<DType> dtype;          // "dtype" or "torch_dtype"
  std::optional<int64_t> bos_token_id, pad_token_id;
  std::vector<int64_t> eos_token_ids;
};

// Reads a model folder's config.json (or the file itself). Throws Error that says what was found
// and what is supported; everything that is wrong at once, one line.
DecoderConfig read_decoder_config(const std::filesystem::path& folder_or_file);
DecoderConfig read_decoder_config(const Json& config, const std::string& what);

}  // namespace larder
