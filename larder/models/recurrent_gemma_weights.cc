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

constexpr const char* kEmbedding = "model.embed_tokens.weight";

void want_weights(WeightLoader& loader, const RecurrentGemmaConfig& c,
                  RecurrentGemmaWeights& weights, std::vector<FileGates>& gates) {
  loader.matrix(kEmbedding, c.vocab_size, c.hidden_size, weights.embed);
  if (!c.tie_word_embeddings)
    loader.matrix("lm_head.weight", c.vocab_size, c.hidden_size, weights.lm_head);
  loader.vector("model.final_norm.weight", {c.hidden_size}, weights.final_norm);
  weights.layers.resize(static_cast<size_t>(c.num_hidden_layers));
  gates.resize(weights.layers.size());
  for (size_t i = 0; i < gates.size(); ++i) want_layer(loader, c, i, weights.layers[i], gates[i]);
}

DType compute_dtype(const LoadOptions& options, DType stored) {
  return options.dtype.value_or(stored == DType::kF64 ? DType::kF32 : stored);
}

}  // namespace

RecurrentGemmaWeights load_recurrent_gemma_weights(const std::filesystem::path& folder,
                                                   const RecurrentGemmaConfig& c,
                                                   const LoadOptions& options,
                                                   Allocator& allocator) {
  RecurrentGemmaWeights weights;
  weights.files = std::make_unique<SafetensorsFolder>(folder);
  WeightLoader loader(*weights.files, folder);
  std::vector<FileGates> gates;
  want_weights(loader, c, weights, gates);
  loader.load(weights, kEmbedding, options, allocator);
  if (c.tie_word_embeddings) weights.lm_head = weights.embed;
  const DType compute = compute_dtype(options, weights.stored_dtype);
  const int64_t heads = c.num_attention_heads, width = c.lru_width / heads;
  for (size_t i = 0; i < gates.size(); ++i) {
    RecurrentGemmaLayer& layer = weights.layers[i];
    if (c.block_types[i] == BlockType::kAttention) continue;
    layer.input_gate = turned(weights, gates[i].input, heads, width, compute, allocator);
    layer.decay_gate = turned(weights, gates[i].decay, heads, width, compute, allocator);
    auto* rate = const_cast<float*>(layer.rate);  // vectors are copies of our own
    for (int64_t j = 0; j < c.lru_width; ++j) rate[j] = softplus(rate[j]);
  }
  return weights;
}

WeightBytes recurrent_gemma_weight_bytes(const std::filesystem::path& folder,
                                         const RecurrentGemmaConfig& c,
                                         const LoadOptions& options) {
  const SafetensorsFolder files(folder);
  RecurrentGemmaWeights weights;
  WeightLoader loader(files, folder);
  std::vector<FileGates> gates;
  want_weights(loader, c, weights, gates);
  WeightBytes bytes = loader.bytes(kEmbedding, options);
  const size_t turned_bytes =
      dtype_size(compute_dtype(options, files.find(kEmbedding)->dtype)) *
      static_cast<size_t>(c.lru_width * c.lru_width / c.num_attention_heads);
  for (const BlockType type : c.block_types)
    if (type != BlockType::kAttention) bytes.converted += 2 * turned_bytes;
  return bytes;
}

}  // namespace larder
