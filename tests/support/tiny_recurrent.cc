#include "tests/support/tiny_recurrent.h"

#include "larder/base/str.h"

namespace larder::test {
namespace {

class Maker {
 public:
  explicit Maker(Json config) {
    model_.config = std::move(config);
    model_.tensors.clear();
  }
  int64_t number(const char* key) const { return model_.config.at(key).get<int64_t>(); }
  void add(const std::string& name, std::vector<int64_t> shape) {
    model_.tensors[name] = TinyModel::random(name, std::move(shape));
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  bool flag(const char* key, bool absent) const { return model_.config.value(key, absent); }
  TinyModel take() { return std::move(model_); }

 private:
  TinyModel model_;
};

}  // namespace

TinyModel tiny_mamba(const Json& changes) {
  Json config = {{"architectures", {"MambaForCausalLM"}},
                 {"model_type", "mamba"},
                 {"vocab_size", 32},
                 {"hidden_size", 12},
                 {"intermediate_size", 20},
                 {"num_hidden_layers", 2},
                 {"state_size", 3},
                 {"conv_kernel", 4},
                 {"time_step_rank", 2},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  config.update(changes);
  Maker make(config);
  const int64_t hidden = make.number("hidden_size"), inner = make.number("intermediate_size"),
                states = make.number("state_size");
  const Json& rank_field = config.at("time_step_rank");
  const int64_t rank = rank_field.is_string() ? (hidden + 15) / 16 : rank_field.get<int64_t>();
  make.add("backbone.embeddings.weight", {make.number("vocab_size"), hidden});
  make.add("backbone.norm_f.weight", {hidden});
  if (!make.flag("tie_word_embeddings", true))
    make.add("lm_head.weight", {make.number("vocab_size"), hidden});
  for (int64_t i = 0; i < make.number("num_hidden_layers"); ++i) {
    const std::string at = str("backbone.layers.", i, "."), mixer = at + "mixer.";
    make.add(at + "norm.weight", {hidden});
    make.linear(mixer + "in_proj", 2 * inner, hidden, make.flag("use_bias", false));
    make.add(mixer + "conv1d.weight", {inner, 1, make.number("conv_kernel")});
    if (make.flag("use_conv_bias", true)) make.add(mixer + "conv1d.bias", {inner});
    make.linear(mixer + "x_proj", rank + 2 * states, inner, false);
    make.linear(mixer + "dt_proj", inner, rank, true);
    make.add(mixer + "A_log", {inner, states});
    make.add(mixer + "D", {inner});
    make.linear(mixer + "out_proj", hidden, inner, make.flag("use_bias", false));
  }
  return make.take();
}

namespace {

void add_temporal(Maker& make, const std::string& at, bool attention) {
  const int64_t hidden = make.number("hidden_size"), lru = make.number("lru_width"),
                heads = make.number("num_attention_heads"), dim = make.number("head_dim");
  if (attention) {
    const int64_t kv = make.number("num_key_value_heads") * dim;
    const bool bias = make.flag("attention_bias", false);
    make.linear(at + "q_proj", heads * dim, hidden, bias);
    make.linear(at + "k_proj", kv, hidden, bias);
    make.linear(at + "v_proj", kv, hidden, bias);
    make.linear(at + "o_proj", hidden, heads * dim, true);
    return;
  }
  const int64_t width = lru / heads;
  make.linear(at + "linear_x", lru, hidden, true);
  make.linear(at + "linear_y", lru, hidden, true);
  make.linear(at + "linear_out", hidden, lru, true);
  make.add(at + "conv_1d.weight", {lru, 1, make.number("conv1d_width")});
  make.add(at + "conv_1d.bias", {lru});
  for (const char* gate : {"input_gate", "recurrent_gate"}) {
    make.add(str(at, "rg_lru.", gate, "_weight"), {heads, width, width});
    make.add(str(at, "rg_lru.", gate, "_bias"), {heads, width});
  }
  make.add(at + "rg_lru.recurrent_param", {lru});
}

}  // namespace

TinyModel tiny_recurrent_gemma(const Json& changes) {
  Json config = {{"architectures", {"RecurrentGemmaForCausalLM"}},
                 {"model_type", "recurrent_gemma"},
                 {"vocab_size", 32},
                 {"hidden_size", 16},
                 {"intermediate_size", 28},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"head_dim", 8},
                 {"lru_width", 12},
                 {"conv1d_width", 4},
                 {"attention_window_size", 5},
                 {"block_types", {"recurrent", "attention"}},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  config.update(changes);
  Maker make(config);
  const int64_t hidden = make.number("hidden_size"), inner = make.number("intermediate_size") / 2;
  const auto blocks = config.at("block_types").get<std::vector<std::string>>();
  make.add("model.embed_tokens.weight", {make.number("vocab_size"), hidden});
  make.add("model.final_norm.weight", {hidden});
  if (!make.flag("tie_word_embeddings", true))
    make.add("lm_head.weight", {make.number("vocab_size"), hidden});
  for (int64_t i = 0; i < make.number("num_hidden_layers"); ++i) {
    const std::string at = str("model.layers.", i, ".");
    make.add(at + "temporal_pre_norm.weight", {hidden});
    make.add(at + "channel_pre_norm.weight", {hidden});
    add_temporal(make, at + "temporal_block.",
                 blocks[static_cast<size_t>(i) % blocks.size()] == "attention");
    make.linear(at + "mlp_block.gate_proj", inner, hidden, true);
    make.linear(at + "mlp_block.up_proj", inner, hidden, true);
    make.linear(at + "mlp_block.down_proj", hidden, inner, true);
  }
  return make.take();
}

}  // namespace larder::test
