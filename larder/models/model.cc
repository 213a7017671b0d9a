#include "larder/models/model.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/models/config_file.h"
#include "larder/models/decoder.h"

namespace larder {
namespace {

// By `architectures`, and by model_type where there is no list.
const Architecture* find_architecture(const Json& config, const std::string& what) {
  const JsonFields fields(config, what);
  const auto names = fields.strings("architectures").value_or(std::vector<std::string>{});
  const auto model_type = fields.string("model_type");
  for (const Architecture& known : architectures()) {
    if (std::ranges::find(names, known.name) != names.end()) return &known;
    if (names.empty() && model_type == known.model_type) return &known;
  }
  return nullptr;
}

const Architecture* find_architecture(const std::filesystem::path& folder) {
  // Faults of the file are left to the loader, which names them.
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "config.json", ignored)) return nullptr;
  const ConfigFile file = read_config_file(folder / "config.json");
  return find_architecture(file.json, file.what);
}

}  // namespace

std::shared_ptr<const Model> Model::load(const std::filesystem::path& folder,
                                         const LoadOptions& options, Allocator& allocator) {
  const Architecture* known = find_architecture(folder);
  return known ? known->load(folder, options, allocator)
               : Decoder::load(folder, options, allocator);
}

std::shared_ptr<const Model> Model::load(const std::filesystem::path& folder,
                                         std::optional<DType> dtype, Allocator& allocator) {
  return load(folder, LoadOptions{dtype}, allocator);
}

WeightBytes Model::weight_bytes(const std::filesystem::path& folder, const LoadOptions& options) {
  const Architecture* known = find_architecture(folder);
  return known ? known->weight_bytes(folder, options) : Decoder::weight_bytes(folder, options);
}

std::shared_ptr<const Model> Model::outline(const Json& config, const std::string& what,
                                            DType dtype, WeightFormat weights) {
  if (const Architecture* known = find_architecture(config, what))
    return known->outline(config, what, dtype, weights);
  return Decoder::outline(read_decoder_config(config, what), dtype, weights);
}

void Model::encode(Exec& /*exec*/, const Step& /*step*/, std::span<const int32_t> /*ids*/,
                   Cache& /*cache*/, AttentionKind /*attention*/) const {
  fail_as(ErrorKind::kUnsupported, info().architecture, " has no encoder");
}

std::optional<std::vector<float>> Model::key_rotation(int64_t /*layer*/,
                                                      int64_t /*positions*/) const {
  return std::nullopt;
}

}  // namespace larder
