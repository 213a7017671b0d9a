// A model family: how its config.json and its weight names map onto the generic decoder. One file
// in families/ and one line in families/registry.cc each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "larder/models/config_reader.h"
#include "larder/models/decoder_config.h"

namespace larder {

// Names of one layer's weights as the file has them, without the trailing ".weight" or ".bias".
// Empty: the family has no such weight. The order is that of the forward pass.
struct LayerNames {
  std::string input_norm;           // before attention
  std::string q, k, v, o;           // projections
  std::string post_attention_norm;  // on attention's output, before the residual sum (Gemma2)
  std::string mlp_norm;             // before the MLP
  std::string gate, up, down;
  std::string post_mlp_norm;  // on the MLP's output, before the residual sum (Gemma2)
};

// Names outside the layers, likewise.
struct ModelNames {
  std::string embed, final_norm, lm_head;
};

// Constant data with static lifetime; may be used from any thread.
struct Family {
  const char* architecture;  // as config.json's `architectures` has it
  const char* model_type;    // as config.json's `model_type` has it
  // Fills `out` with the family's defaults applied, and collects what is wrong instead of throwing.
  // `out` may be used only when `problems` stayed empty.
  void (*read_config)(const JsonFields& config, DecoderConfig& out, ConfigProblems& problems);
  LayerNames (*layer_names)(int64_t layer);
  ModelNames (*model_names)();
};

// All families, in the order of their registry lines.
std::span<const Family* const> families();
// nullptr when there is none of that name.
const Family* find_family(std::string_view architecture);
const Family* find_family_of_type(std::string_view model_type);
// "LlamaForCausalLM, MistralForCausalLM, ..."
std::string supported_architectures();

}  // namespace larder
