#include "larder/models/config_file.h"

#include <system_error>

#include "larder/base/file.h"

namespace larder {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

}  // namespace

ConfigFile read_config_file(const std::filesystem::path& folder_or_file) {
  std::error_code ignored;  // what cannot be looked at is refused by read_file with its reason
  const bool folder = std::filesystem::is_directory(folder_or_file, ignored);
  const auto path = folder ? folder_or_file / "config.json" : folder_or_file;
  const std::string what = path.string();
  return {path.parent_path(), what, parse_json(read_file(path, kMaxConfigBytes), what)};
}

TokenIds read_token_ids(const ConfigReader& reader, const TokenIds& absent) {
  const JsonFields& fields = reader.fields();
  TokenIds ids;
  ids.bos_token_id = reader.id("bos_token_id", absent.bos_token_id);
  ids.pad_token_id = reader.id("pad_token_id", absent.pad_token_id);
  ids.decoder_start_token_id = reader.id("decoder_start_token_id", absent.decoder_start_token_id);
  ids.eos_token_ids =
      fields.has("eos_token_id") ? reader.ids("eos_token_id", std::nullopt) : absent.eos_token_ids;
  return ids;
}

void override_token_ids(const std::filesystem::path& folder, TokenIds& ids) {
  const auto path = folder / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  const std::string what = path.string();
  const Json json = parse_json(read_file(path, kMaxConfigBytes), what);
  const JsonFields fields(json, what);
  ConfigProblems problems(what);
  ids = read_token_ids(ConfigReader(fields, problems), ids);
  problems.throw_if_any();
}

}  // namespace larder
