#include "tests/support/tiny_model.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>

#include "larder/base/error.h"
#include "larder/tensor/safetensors.h"
#include "tests/support/random_floats.h"

namespace larder::test {

Json TinyModel::default_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 32},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

TinyTensor TinyModel::random(const std::string& name, std::vector<int64_t> shape) {
  const int64_t count =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  uint64_t seed = 0;
  for (const char c : name) seed = seed * 131 + static_cast<unsigned char>(c);
  const bool norm = shape.size() == 1;
  std::vector<float> values = random_floats(count, seed, norm ? 0.1f : 0.4f);
  for (float& value : values) value += norm ? 1.0f : 0.0f;
  TinyTensor tensor{DType::kF32, std::move(shape),
                    std::vector<std::byte>(values.size() * sizeof(float))};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

TinyModel::TinyModel(Json with) : config(std::move(with)) {
  const auto number = [&](const char* key) { return config.at(key).get<int64_t>(); };
  const int64_t hidden = number("hidden_size"), inner = number("intermediate_size"),
                vocab = number("vocab_size");
  const int64_t heads = number("num_attention_heads"), kv_heads = number("num_key_value_heads");
  const int64_t dim = config.contains("head_dim") ? number("head_dim") : hidden / heads;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors[name] = random(name, std::move(shape));
  };
  add("model.embed_tokens.weight", {vocab, hidden});
  add("model.norm.weight", {hidden});
  if (!config.value("tie_word_embeddings", false)) add("lm_head.weight", {vocab, hidden});
  for (int64_t i = 0; i < number("num_hidden_layers"); ++i) {
    const std::string at = str("model.layers.", i, ".");
    add(at + "input_layernorm.weight", {hidden});
    add(at + "post_attention_layernorm.weight", {hidden});
    add(at + "self_attn.q_proj.weight", {heads * dim, hidden});
    add(at + "self_attn.k_proj.weight", {kv_heads * dim, hidden});
    add(at + "self_attn.v_proj.weight", {kv_heads * dim, hidden});
    add(at + "self_attn.o_proj.weight", {hidden, heads * dim});
    add(at + "mlp.gate_proj.weight", {inner, hidden});
    add(at + "mlp.up_proj.weight", {inner, hidden});
    add(at + "mlp.down_proj.weight", {hidden, inner});
  }
}

void TinyModel::write(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  std::vector<TensorToWrite> list;
  for (const auto& [name, tensor] : tensors)
    list.push_back({name, tensor.dtype, tensor.shape, tensor.bytes.data()});
  write_safetensors(folder / "model.safetensors", list);
}

}  // namespace larder::test
