// What the T5 model needs of config.json, with the family's defaults applied.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "larder/cache/layer.h"
#include "larder/models/config_file.h"
#include "larder/tensor/dtype.h"
#include "larder/tensor/kernels.h"

namespace larder {

// Field names are config.json's.
struct T5Config {
  int64_t vocab_size = 0, d_model = 0, d_kv = 0, d_ff = 0;
  int64_t num_layers = 0, num_decoder_layers = 0, num_heads = 0;
  int64_t relative_attention_num_buckets = 0, relative_attention_max_distance = 0;
  double layer_norm_epsilon = 0;
  bool is_gated_act = false;               // feed_forward_proj "gated-...": two inputs
  Activation act = Activation::kGeluTanh;  // of the gate; without one it is relu
  bool tie_word_embeddings = false;        // then the head's input is scaled too
  std::optional<DType> dtype;
  TokenIds token_ids;
};

// Reads a model folder's config.json (or the file itself). Throws Error with everything that is
// wrong in one line.
T5Config read_t5_config(const std::filesystem::path& folder_or_file);
T5Config read_t5_config(const Json& config, const std::string& what);

// What the cache keeps: one layer each of the decoder, then its cross layers.
std::vector<LayerSpec> t5_layer_specs(const T5Config& config);

// Numbers in all weights, a tied head counted once.
int64_t num_parameters(const T5Config& config);

}  // namespace larder
