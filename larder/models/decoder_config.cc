#include "larder/models/decoder_config.h"

#include "larder/base/json.h"
#include "larder/models/config_file.h"
#include "larder/models/family.h"

namespace larder {
namespace {

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
  const ConfigFile file = read_config_file(folder_or_file);
  DecoderConfig out = read_decoder_config(file.json, file.what);
  TokenIds ids{out.bos_token_id, out.pad_token_id, std::nullopt, out.eos_token_ids};
  override_token_ids(file.folder, ids);
  out.bos_token_id = ids.bos_token_id;
  out.pad_token_id = ids.pad_token_id;
  out.eos_token_ids = ids.eos_token_ids;
  return out;
}

}  // namespace larder
