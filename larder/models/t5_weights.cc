#include "larder/models/t5.h"

namespace larder {
namespace {

void want_attention(WeightLoader& loader, const T5Config& c, const std::string& at,
                    const std::string& name, T5Attention& to) {
  const int64_t inner = c.num_heads * c.d_kv;
  loader.vector(at + "layer_norm.weight", {c.d_model}, to.norm);
  loader.linear(at + name + ".q", inner, c.d_model, false, to.q);
  loader.linear(at + name + ".k", inner, c.d_model, false, to.k);
  loader.linear(at + name + ".v", inner, c.d_model, false, to.v);
  loader.linear(at + name + ".o", c.d_model, inner, false, to.o);
}

void want_feed_forward(WeightLoader& loader, const T5Config& c, const std::string& at,
                       T5Layer& to) {
  const std::string dense = at + "DenseReluDense.";
  loader.vector(at + "layer_norm.weight", {c.d_model}, to.ff_norm);
  if (c.is_gated_act) loader.linear(dense + "wi_0", c.d_ff, c.d_model, false, to.gate);
  loader.linear(dense + (c.is_gated_act ? "wi_1" : "wi"), c.d_ff, c.d_model, false, to.up);
  loader.linear(dense + "wo", c.d_model, c.d_ff, false, to.down);
}

void want_stack(WeightLoader& loader, const T5Config& c, const std::string& stack, bool cross,
                T5Stack& to) {
  for (size_t i = 0; i < to.layers.size(); ++i) {
    const std::string at = str(stack, ".block.", i, ".layer.");
    want_attention(loader, c, at + "0.", "SelfAttention", to.layers[i].self);
    if (cross) want_attention(loader, c, at + "1.", "EncDecAttention", to.layers[i].cross);
    want_feed_forward(loader, c, at + (cross ? "2." : "1."), to.layers[i]);
  }
  loader.vector(stack + ".final_layer_norm.weight", {c.d_model}, to.final_norm);
  // The first layer's bias serves all.
  loader.vector(stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                {c.relative_attention_num_buckets, c.num_heads}, to.bias);
}

// Gives the embedding's name.
std::string want_weights(WeightLoader& loader, const T5Config& c, T5Weights& weights) {
  loader.matrix("shared.weight", c.vocab_size, c.d_model, weights.embed);
  if (!c.tie_word_embeddings)
    loader.matrix("lm_head.weight", c.vocab_size, c.d_model, weights.lm_head);
  weights.encoder.layers.resize(static_cast<size_t>(c.num_layers));
  weights.decoder.layers.resize(static_cast<size_t>(c.num_decoder_layers));
  want_stack(loader, c, "encoder", false, weights.encoder);
  want_stack(loader, c, "decoder", true, weights.decoder);
  return "shared.weight";
}

}  // namespace

T5Weights load_t5_weights(const std::filesystem::path& folder, const T5Config& c,
                          const LoadOptions& options, Allocator& allocator) {
  T5Weights weights;
  weights.files = std::make_unique<SafetensorsFolder>(folder);
  WeightLoader loader(*weights.files, folder);
  loader.load(weights, want_weights(loader, c, weights), options, allocator);
  if (c.tie_word_embeddings) weights.lm_head = weights.embed;
  return weights;
}

WeightBytes t5_weight_bytes(const std::filesystem::path& folder, const T5Config& c,
                            const LoadOptions& options) {
  const SafetensorsFolder files(folder);
  T5Weights weights;
  WeightLoader loader(files, folder);
  return loader.bytes(want_weights(loader, c, weights), options);
}

}  // namespace larder
