// Gemma2ForCausalLM: even layers slide and odd ones are full, capped scores and logits, norms on
// both sides of attention and MLP. Defaults are those of transformers' Gemma2Config.
#include <cmath>

#include "larder/models/common_config.h"
#include "larder/models/families/llama_names.h"

namespace larder {
namespace {

void read_config(const JsonFields& config, DecoderConfig& out, ConfigProblems& problems) {
  const ConfigReader reader(config, problems);
  read_common_config(reader,
                     {.max_position_embeddings = 8192,
                      .num_key_value_heads = 4,
                      .head_dim = 256,
                      .sliding_window = 4096,
                      .tie_word_embeddings = true,
                      .bos_token_id = 2,
                      .eos_token_id = 1,
                      .pad_token_id = 0},
                     out);
  // hidden_act stands in these files too and is not read by the model.
  out.hidden_act = read_activation(reader, "hidden_activation", Activation::kGeluTanh,
                                   NullActivation::kIsDefault);
  out.attention_bias = reader.flag("attention_bias", false);
  // Not head_dim: the 27b model has 144 beside heads of 128.
  const double scalar = reader.number("query_pre_attn_scalar", 256);
  if (scalar > 0) out.attention_scale = 1 / std::sqrt(scalar);
  out.attn_logit_softcapping = reader.number_or_null("attn_logit_softcapping", 50);
  out.final_logit_softcapping = reader.number_or_null("final_logit_softcapping", 30);
  out.embedding_multiplier = std::sqrt(static_cast<double>(out.hidden_size));
  out.norm_weight_offset = 1;
  out.post_norms = true;
  read_layer_types(
      reader,
      [](int64_t layer) {
        return layer % 2 == 0 ? LayerType::kSlidingAttention : LayerType::kFullAttention;
      },
      out);
  refuse_foreign_keys(reader, {"attention_bias", "query_pre_attn_scalar", "attn_logit_softcapping",
                               "final_logit_softcapping"});
}

LayerNames layer_names(int64_t layer) {
  const std::string at = str("model.layers.", layer, ".");
  LayerNames names = llama_layer_names(layer);
  // Here the name means what it says, unlike Llama's.
  names.post_attention_norm = at + "post_attention_layernorm";
  names.mlp_norm = at + "pre_feedforward_layernorm";
  names.post_mlp_norm = at + "post_feedforward_layernorm";
  return names;
}

}  // namespace

extern const Family kGemma2Family;
const Family kGemma2Family = {"Gemma2ForCausalLM", "gemma2", read_config, layer_names,
                              llama_model_names};

}  // namespace larder
