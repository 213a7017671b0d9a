// What the Mamba model needs of config.json, with the family's defaults applied.
#pragma once

#include <filesystem>
#include <string>

#include "larder/cache/layer.h"
#include "larder/models/config_file.h"
#include "larder/tensor/dtype.h"

namespace larder {

// Field names are config.json's.
struct MambaConfig {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t state_size = 0, conv_kernel = 0, time_step_rank = 0;
  double layer_norm_epsilon = 0;
  bool use_bias = false;  // of in_proj and out_proj
  bool use_conv_bias = false;
  bool tie_word_embeddings = false;
  std::optional<DType> dtype;
  TokenIds token_ids;
};

// Reads a model folder's config.json (or the file itself). Throws Error with everything that is
// wrong in one line.
MambaConfig read_mamba_config(const std::filesystem::path& folder_or_file);
MambaConfig read_mamba_config(const Json& config, const std::string& what);

// What the cache keeps of a layer; all are alike.
LayerSpec mamba_layer_spec(const MambaConfig& config);

// Numbers in all weights, a tied head counted once.
int64_t num_parameters(const MambaConfig& config);

}  // namespace larder
