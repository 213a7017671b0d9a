// The weights of a decoder, as they lie in the mapped files wherever the dtype allows.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "larder/models/decoder_config.h"
#include "larder/models/weight_loader.h"

namespace larder {

// See LinearWeights: matrices are [out, in], vectors f32, what is absent is null.
struct LayerWeights {
  const float* input_norm = nullptr;  // [hidden_size]
  LinearWeights q, k, v, o;           // [heads * head_dim, hidden], o the other way round
  const float* post_attention_norm =
      nullptr;  // on the output of attention, before the residual is added (Gemma2)
  const float* mlp_norm = nullptr;
  LinearWeights gate, up, down;  // [intermediate, hidden], down the other way round
  const float* post_mlp_norm = nullptr;
};

struct DecoderWeights : LoadedWeights {
  WeightMatrix embed;    // [vocab_size, hidden_size]
  WeightMatrix lm_head;  // the same memory as embed where tied
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;
};

// Loads all weights that `config` asks for, as WeightLoader::load does.
DecoderWeights load_decoder_weights(const std::filesystem::path& folder,
                                    const DecoderConfig& config, const LoadOptions& options,
                                    Allocator& allocator);
WeightBytes decoder_weight_bytes(const std::filesystem::path& folder, const DecoderConfig& config,
                                 const LoadOptions& options);

}  // namespace larder
