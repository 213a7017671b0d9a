// What the RecurrentGemma model needs of config.json, with the family's defaults applied.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "larder/cache/layer.h"
#include "larder/models/config_file.h"
#include "larder/models/rope.h"
#include "larder/tensor/dtype.h"
#include "larder/tensor/kernels.h"

namespace larder {

enum class BlockType : uint8_t { kRecurrent, kAttention };

// Field names are config.json's.
struct RecurrentGemmaConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
  int64_t intermediate_size = 0;  // gate and up together: each is half as wide
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t attention_window_size = 0;
  int64_t lru_width = 0, conv1d_width = 0;
  int64_t max_position_embeddings = 0;  // INT64_MAX: neither the window nor a state has a limit
  double rms_norm_eps = 0;
  double logits_soft_cap = 0;   // 0 = none
  bool attention_bias = false;  // of q, k and v; o always has one
  bool tie_word_embeddings = false;
  Activation hidden_activation = Activation::kGeluTanh;
  std::vector<BlockType> block_types;  // one a layer
  RopeConfig rope;
  std::optional<DType> dtype;
  TokenIds token_ids;
};

// Reads a model folder's config.json (or the file itself). Throws Error with everything that is
// wrong in one line.
RecurrentGemmaConfig read_recurrent_gemma_config(const std::filesystem::path& folder_or_file);
RecurrentGemmaConfig read_recurrent_gemma_config(const Json& config, const std::string& what);

// What the cache keeps, one a layer.
std::vector<LayerSpec> recurrent_gemma_layer_specs(const RecurrentGemmaConfig& config);

// Numbers in all weights, a tied head counted once.
int64_t num_parameters(const RecurrentGemmaConfig& config);

}  // namespace larder
