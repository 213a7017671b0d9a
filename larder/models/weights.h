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
  TensorView embed;    // [vocab_size, hidden_size]
  TensorView lm_head;  // the same memory as embed where tied
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;
};

// Loads all weights that `config` asks for. `dtype`: what activations and matrices are rounded to;
// nullopt = as stored. A matrix stays in the file when computing in f32 (it is widened on the fly)
// or when it is stored in `dtype`; otherwise a converted copy is taken from `allocator` (tag
// "weights"). Throws one Error that lists every tensor that is missing, has another shape, or is of
// a type that no kernel reads; nothing is converted before that check.
DecoderWeights load_decoder_weights(const std::filesystem::path& folder,
                                    const DecoderConfig& config, std::optional<DType> dtype,
                                    Allocator& allocator);

}  // namespace larder
