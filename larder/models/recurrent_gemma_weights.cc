#include "larder/models/recurrent_gemma.h"
#include "larder/models/scan.h"

namespace larder {
namespace {

// The gates' matrices as the file has them: [heads, in, out], f32.
struct FileGates {
  const float *input = nullptr, *decay = nullptr;
};

void want_recurrent(WeightLoader& loader, const RecurrentGemmaConfig& c, const std::string& at,
                    RecurrentGemmaLayer& to, FileGates& gates) {
  const int64_t lru = c.lru_width, heads = c.num_attention_heads, width = lru / heads;
  loader.linear(at + "linear_x", lru, c.hidden_size, true, to.linear_x);
  loader.linear(at + "linear_y", lru, c.hidden_size, true, to.linear_y);
  loader.linear(at + "linear_out", c.hidden_size, lru, true, to.linear_out);
  loader.vector(at + "conv_1d.weight", {lru, 1, c.conv1d_width}, to.conv_weight);
  loader.vector(at + "conv_1d.bias", {lru}, to.conv_bias);
  const std::string unit = at + "rg_lru.";
  loader.vector(unit + "input_gate_weight", {heads, width, width}, gates.input);
  loader.vector(unit + "recurrent_gate_weight", {heads, width, width}, gates.decay);
  loader.vector(unit + "input_gate_bias", {heads, width}, to.input_bias);
  loader.vector(unit + "recurrent_gate_bias", {heads, width}, to.decay_bias);
  loader.vector(unit + "recurrent_param", {lru}, to.rate);
}

void want_attention(WeightLoader& loader, const RecurrentGemmaConfig& c, const std::string& at,
                    RecurrentGemmaLayer& to) {
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  loader.linear(at + "q_proj", q, c.hidden_size, c.attention_bias, to.q);
  loader.linear(at + "k_proj", kv, c.hidden_size, c.attention_bias, to.k);
  loader.linear(at + "v_proj", kv, c.hidden_size, c.attention_bias, to.v);
  loader.linear(at + "o_proj", c.hidden_size, q, true, to.o);
}

void want_layer(WeightLoader& loader, const RecurrentGemmaConfig& c, size_t index,
                RecurrentGemmaLayer& to, FileGates& gates) {
  const std::string at = str("model.layers.", index, "."), temporal = at + "temporal_block.";
  const int64_t inner = c.intermediate_size / 2;
  loader.vector(at + "temporal_pre_norm.weight", {c.hidden_size}, to.temporal_norm);
  loader.vector(at + "channel_pre_norm.weight", {c.hidden_size}, to.channel_norm);
  if (c.block_types[index] == BlockType::kAttention)
    want_attention(loader, c, temporal, to);
  else
    want_recurrent(loader, c, temporal, to, gates);
  loader.linear(at + "mlp_block.gate_proj", inner, c.hidden_size, true, to.gate);
  loader.linear(at + "mlp_block.up_proj", inner, c.hidden_size, true, to.up);
  loader.linear(at + "mlp_block.down_proj", c.hidden_size, inner, true, to.down);
}

// The kernel wants [out, in], rounded to what is computed in.
TensorView turned(RecurrentGemmaWeights& weights, const float* file, int64_t heads, int64_t width,
                  DType compute, Allocator& allocator) {
  const TensorView in_out =
      TensorView::contiguous(const_cast<float*>(file), DType::kF32, {heads, width, width});
  weights.owned.push_back(clone(allocator, in_out.transpose(1, 2), compute, "weights"));
  weights.converted_bytes += static_cast<size_t>(weights.owned.back().view().byte_size());
  return weights.owned.back();
}

}  // namespace

RecurrentGemmaWeights load_recurrent_gemma_weights(const std::filesystem::path& folder,
                                                   const RecurrentGemmaConfig& c,
                                                   std::optional<DType> dtype,
                                                   Allocator& allocator) {
  RecurrentGemmaWeights weights;
  weights.files = std::make_unique<SafetensorsFolder>(folder);
  const std::string embedding = "model.embed_tokens.weight";
  WeightLoader loader(*weights.files, folder.string());
  loader.matrix(embedding, c.vocab_size, c.hidden_size, weights.embed);
  if (!c.tie_word_embeddings)
    loader.matrix("lm_head.weight", c.vocab_size, c.hidden_size, weights.lm_head);
  loader.vector("model.final_norm.weight", {c.hidden_size}, weights.final_norm);
  const auto layers = static_cast<size_t>(c.num_hidden_layers);
  weights.layers.resize(layers);
  std::vector<FileGates> gates(layers);
  for (size_t i = 0; i < layers; ++i) want_layer(loader, c, i, weights.layers[i], gates[i]);
  loader.load(weights, embedding, dtype, allocator);
  if (c.tie_word_embeddings) weights.lm_head = weights.embed;
  const DType stored = weights.stored_dtype == DType::kF64 ? DType::kF32 : weights.stored_dtype;
  const int64_t heads = c.num_attention_heads, width = c.lru_width / heads;
  for (size_t i = 0; i < layers; ++i) {
    RecurrentGemmaLayer& layer = weights.layers[i];
    if (c.block_types[i] == BlockType::kAttention) continue;
    const DType compute = dtype.value_or(stored);
    layer.input_gate = turned(weights, gates[i].input, heads, width, compute, allocator);
    layer.decay_gate = turned(weights, gates[i].decay, heads, width, compute, allocator);
    auto* rate = const_cast<float*>(layer.rate);  // vectors are copies of our own
    for (int64_t j = 0; j < c.lru_width; ++j) rate[j] = softplus(rate[j]);
  }
  return weights;
}

}  // namespace larder
