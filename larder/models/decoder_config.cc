#include "larder/models/decoder_config.h"

#include <system_error>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/models/family.h"

namespace larder {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// The first architecture of the list that is supported; without a list, what model_type says.
const Family& choose_family(const JsonFields& config) {
  const auto architectures = config.strings("architectures").value_or(std::vector<std::string>{});
  const auto model_type = config.string("model_type");
  for (const std::string& name : architectures)
    if (const Family* family = find_family(name)) return *family;
  if (architectures.empty() && model_type)
    if (const Family* family = find_family_of_type(*model_type)) return *family;

  std::string found;
  for (const std::string& name : architectures)
    found += str(found.empty() ? "architecture " : ", ", in_quotes(name));
  if (model_type) found += str(found.empty() ? "" : ", ", "model_type ", in_quotes(*model_type));
  if (found.empty()) {
    fail(config.what(),
         ": has neither architectures nor model_type (supported: ", supported_architectures(), ")");
  }
  fail_as(ErrorKind::kUnsupported, config.what(), ": ", found,
          " is not supported (supported: ", supported_architectures(), ")");
}

// generation_config.json is the newer place of the ids, and often the complete one. Absent keys
// leave what config.json says; null takes it away.
void override_ids(const std::filesystem::path& path, DecoderConfig& out) {
  const std::string what = path.string();
  const Json json = parse_json(read_file(path, kMaxConfigBytes), what);
  const JsonFields fields(json, what);
  ConfigProblems problems(what);
  const ConfigReader reader(fields, problems);
  if (fields.has("bos_token_id")) out.bos_token_id = reader.id("bos_token_id", std::nullopt);
  if (fields.has("pad_token_id")) out.pad_token_id = reader.id("pad_token_id", std::nullopt);
  if (fields.has("eos_token_id")) out.eos_token_ids = reader.ids("eos_token_id", std::nullopt);
  problems.throw_if_any();
}

}  // namespace

DecoderConfig read_decoder_config(const Json& config, const std::string& what) {
  const JsonFields fields(config, what);
  const Family& family = choose_family(fields);
  ConfigProblems problems(what);
  DecoderConfig out;
  out.architecture = family.architecture;
  out.model_type = fields.string("model_type").value_or(family.model_type);
  // The class that transformers would load goes by model_type: two families in one file contradict.
  const Family* other = find_family_of_type(out.model_type);
  if (other && other != &family)
    problems.add("model_type ", in_quotes(out.model_type), " contradicts architecture ",
                 in_quotes(family.architecture));
  family.read_config(fields, out, problems);
  problems.throw_if_any();
  return out;
}

DecoderConfig read_decoder_config(const std::filesystem::path& folder_or_file) {
  std::error_code ignored;  // what cannot be looked at is refused by read_file with its reason
  const bool folder = std::filesystem::is_directory(folder_or_file, ignored);
  const auto path = folder ? folder_or_file / "config.json" : folder_or_file;
  const std::string what = path.string();
  const Json json = parse_json(read_file(path, kMaxConfigBytes), what);
  DecoderConfig out = read_decoder_config(json, what);
  const auto generation = path.parent_path() / "generation_config.json";
  if (std::filesystem::exists(generation, ignored)) override_ids(generation, out);
  return out;
}

}  // namespace larder
