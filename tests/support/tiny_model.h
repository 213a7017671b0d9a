// Small checkpoints with random weights, written as a Hugging Face folder, to be bent in tests.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "larder/base/json.h"
#include "larder/tensor/dtype.h"

namespace larder::test {

struct TinyTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// A LlamaForCausalLM unless config says otherwise: hidden 16, 4 heads, 2 kv heads, 2 layers, 32
// ids. Change `config` and `tensors` freely, then write().
class TinyModel {
 public:
  explicit TinyModel(Json config = default_config());
  static Json default_config();

  void write(const std::filesystem::path& folder) const;
  // Random f32 values, the same for the same name.
  static TinyTensor random(const std::string& name, std::vector<int64_t> shape);

  Json config;
  std::map<std::string, TinyTensor> tensors;
};

}  // namespace larder::test
