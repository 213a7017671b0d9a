#include "larder/models/model.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/models/decoder.h"

namespace larder {
namespace {

// By `architectures`, and by model_type where there is no list. Faults of the file are left to the
// loader, which names them.
const Architecture* find_architecture(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return nullptr;
  constexpr size_t kMaxConfigBytes = size_t{16} << 20;
  const Json json = parse_json(read_file(path, kMaxConfigBytes), path.string());
  const JsonFields fields(json, path.string());
  const auto names = fields.strings("architectures").value_or(std::vector<std::string>{});
  const auto model_type = fields.string("model_type");
  for (const Architecture& known : architectures()) {
    if (std::ranges::find(names, known.name) != names.end()) return &known;
    if (names.empty() && model_type == known.model_type) return &known;
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<const Model> Model::load(const std::filesystem::path& folder,
                                         std::optional<DType> dtype, Allocator& allocator) {
  if (const Architecture* known = find_architecture(folder))
    return known->load(folder, dtype, allocator);
  return Decoder::load(folder, dtype, allocator);
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
