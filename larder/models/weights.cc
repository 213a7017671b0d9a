#include "larder/models/weights.h"

#include "larder/base/error.h"
#include "larder/models/family.h"

namespace larder {
namespace {

void want_layer(WeightLoader& loader, const DecoderConfig& c, const LayerNames& names,
                LayerWeights& to) {
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  const auto norm = [&](const std::string& name, const float*& weight) {
    loader.vector(name.empty() ? name : name + ".weight", {c.hidden_size}, weight);
  };
  norm(names.input_norm, to.input_norm);
  loader.linear(names.q, q, c.hidden_size, c.attention_bias, to.q);
  loader.linear(names.k, kv, c.hidden_size, c.attention_bias, to.k);
  loader.linear(names.v, kv, c.hidden_size, c.attention_bias, to.v);
  loader.linear(names.o, c.hidden_size, q, c.attention_bias, to.o);
  norm(names.post_attention_norm, to.post_attention_norm);
  norm(names.mlp_norm, to.mlp_norm);
  loader.linear(names.gate, c.intermediate_size, c.hidden_size, c.mlp_bias, to.gate);
  loader.linear(names.up, c.intermediate_size, c.hidden_size, c.mlp_bias, to.up);
  loader.linear(names.down, c.hidden_size, c.intermediate_size, c.mlp_bias, to.down);
  norm(names.post_mlp_norm, to.post_mlp_norm);
}

// Gives the embedding's name.
std::string want_weights(WeightLoader& loader, const DecoderConfig& config,
                         DecoderWeights& weights) {
  const Family* found = find_family(config.architecture);
  LARDER_ASSERT(found);  // the config was read by it
  const Family& family = *found;
  const ModelNames names = family.model_names();
  loader.matrix(names.embed + ".weight", config.vocab_size, config.hidden_size, weights.embed);
  if (!config.tie_word_embeddings) {
    loader.matrix(names.lm_head + ".weight", config.vocab_size, config.hidden_size,
                  weights.lm_head);
  }
  loader.vector(names.final_norm + ".weight", {config.hidden_size}, weights.final_norm);
  weights.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    want_layer(loader, config, family.layer_names(static_cast<int64_t>(i)), weights.layers[i]);
  }
  return names.embed + ".weight";
}

}  // namespace

DecoderWeights load_decoder_weights(const std::filesystem::path& folder,
                                    const DecoderConfig& config, const LoadOptions& options,
                                    Allocator& allocator) {
  DecoderWeights weights;
  weights.files = std::make_unique<SafetensorsFolder>(folder);
  WeightLoader loader(*weights.files, folder);
  loader.load(weights, want_weights(loader, config, weights), options, allocator);
  if (config.tie_word_embeddings) weights.lm_head = weights.embed;
  return weights;
}

WeightBytes decoder_weight_bytes(const std::filesystem::path& folder, const DecoderConfig& config,
                                 const LoadOptions& options) {
  const SafetensorsFolder files(folder);
  DecoderWeights weights;
  WeightLoader loader(files, folder);
  return loader.bytes(want_weights(loader, config, weights), options);
}

}  // namespace larder
