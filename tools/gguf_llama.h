// A GGUF file of the architecture "llama", seen as the Hugging Face LlamaForCausalLM that it was
// made from.
#pragma once

#include <string>
#include <vector>

#include "larder/base/json.h"
#include "tools/gguf.h"

namespace larder::tools {

// Where one weight of the model comes from. Points into the GgufFile.
struct GgufWeight {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  const GgufTensor* tensor = nullptr;
  int64_t rope_heads = 0;  // heads whose rows llama.cpp interleaved; 0 = rows are in order
};

// A move of nlohmann's type is noexcept, which the check does not see through its assertions.
// NOLINTNEXTLINE(bugprone-exception-escape)
struct GgufLlama {
  Json config, generation_config;   // config.json, generation_config.json
  std::vector<GgufWeight> weights;  // in the order of the layers
  int64_t context_length = 0;
  int64_t vocab_size = 0;  // rows of the embedding
};

// Reads the metadata and matches every tensor. Throws Error: another architecture, metadata that a
// config.json cannot say, weights that are missing, unknown or of another shape (all at once).
GgufLlama read_gguf_llama(const GgufFile& file);

}  // namespace larder::tools
