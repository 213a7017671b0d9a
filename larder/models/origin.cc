#include "larder/models/origin.h"

#include <algorithm>

#include "larder/base/checksum.h"
#include "larder/models/config_file.h"
#include "larder/tensor/safetensors.h"

namespace larder {
namespace {

uint64_t add(uint64_t hash, const std::string& text) {
  return checksum64(std::as_bytes(std::span(text)), hash);
}

}  // namespace

std::string weights_fingerprint(const SafetensorsFolder& files) {
  constexpr size_t kSample = 64;
  uint64_t hash = 0;
  for (const StoredTensor* tensor : files.tensors()) {
    hash = add(hash, tensor->name);
    hash = add(hash, str(safetensors_dtype_name(tensor->dtype), " ", join(tensor->shape, ",")));
    const size_t sample = std::min(kSample, tensor->bytes);
    for (const size_t at : {size_t{0}, (tensor->bytes - sample) / 2, tensor->bytes - sample})
      hash = checksum64({tensor->data + at, sample}, hash);
  }
  return hex(hash);
}

CacheOrigin cache_origin(const std::filesystem::path& folder, const Model& model) {
  Json config = read_config_file(folder / "config.json").json;
  for (const char* key : {"transformers_version", "_name_or_path", "torch_dtype", "dtype",
                          "use_cache", "_attn_implementation"})
    config.erase(key);
  std::string weights = weights_fingerprint(SafetensorsFolder(folder));
  if (model.info().weights != WeightFormat::kStored)
    weights += str("-", weight_format_name(model.info().weights));
  return {config.dump(), std::move(weights), std::string(dtype_name(model.dtype()))};
}

}  // namespace larder
