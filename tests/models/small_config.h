// A small config.json to bend, and short ways to read it, for the tests of configs.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/models/decoder_config.h"
#include "larder/models/family.h"

namespace larder::small_config {

inline constexpr const char* kLlama = "LlamaForCausalLM";
inline constexpr const char* kMistral = "MistralForCausalLM";
inline constexpr const char* kGemma2 = "Gemma2ForCausalLM";

// A small model whose heads suit every family's defaults.
inline Json base(const char* architecture) {
  return Json{
      {"architectures", {architecture}}, {"vocab_size", 32},       {"hidden_size", 64},
      {"intermediate_size", 96},         {"num_hidden_layers", 4}, {"num_attention_heads", 8}};
}

inline Json with(const char* architecture, const std::string& changes) {
  Json config = base(architecture);
  config.update(parse_json(changes, "changes"));
  return config;
}

inline DecoderConfig read(const char* architecture, const std::string& changes = "{}") {
  return read_decoder_config(with(architecture, changes), "config.json");
}

// The line that refuses a config; empty when it is read.
inline std::string refusal(const Json& config) {
  try {
    read_decoder_config(config, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline std::vector<LayerType> layers(std::initializer_list<int> slides) {
  std::vector<LayerType> types;
  for (const int slide : slides)
    types.push_back(slide ? LayerType::kSlidingAttention : LayerType::kFullAttention);
  return types;
}

}  // namespace larder::small_config
