// Weight names that Llama gave and its descendants kept.
#pragma once

#include "larder/models/family.h"

namespace larder {

inline LayerNames llama_layer_names(int64_t layer) {
  const std::string at = str("model.layers.", layer, ".");
  LayerNames names;
  names.input_norm = at + "input_layernorm";
  names.q = at + "self_attn.q_proj";
  names.k = at + "self_attn.k_proj";
  names.v = at + "self_attn.v_proj";
  names.o = at + "self_attn.o_proj";
  // Named for its place after attention; it is the norm before the MLP.
  names.mlp_norm = at + "post_attention_layernorm";
  names.gate = at + "mlp.gate_proj";
  names.up = at + "mlp.up_proj";
  names.down = at + "mlp.down_proj";
  return names;
}

inline ModelNames llama_model_names() { return {"model.embed_tokens", "model.norm", "lm_head"}; }

}  // namespace larder
