// From a GGUF file to a Hugging Face model folder.
#pragma once

#include <filesystem>
#include <functional>

namespace larder::tools {

struct ImportResult {
  size_t tensors = 0, bytes = 0;  // of model.safetensors' data
};

// Reads a GGUF file of the architecture "llama" and writes config.json, generation_config.json,
// tokenizer.json, tokenizer_config.json and model.safetensors (bf16) into `folder`. Everything is
// checked before anything is written, and the folder appears complete or not at all: it is filled
// under another name beside the target. Throws Error when `folder` exists and is not empty.
// `stop` is asked between tensors; when it says true, nothing is written and the result has no
// tensors. Needs memory for the weights in bf16.
ImportResult import_gguf(const std::filesystem::path& gguf, const std::filesystem::path& folder,
                         const std::function<bool()>& stop);

}  // namespace larder::tools
