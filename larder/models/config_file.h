// Opening config.json, and the special tokens that generation_config.json may put in its place.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "larder/base/json.h"
#include "larder/models/config_reader.h"

namespace larder {

struct ConfigFile {
  std::filesystem::path folder;
  std::string what;  // the file, as error lines begin
  Json json;
};

// A model folder, or the file itself.
ConfigFile read_config_file(const std::filesystem::path& folder_or_file);

// Keys are config.json's.
struct TokenIds {
  std::optional<int64_t> bos_token_id, pad_token_id, decoder_start_token_id;
  std::vector<int64_t> eos_token_ids;
};

// What stands in the file; absent keys take `absent`'s.
TokenIds read_token_ids(const ConfigReader& reader, const TokenIds& absent);

// generation_config.json is the newer place of the ids, and often the complete one. Without the
// file, and for absent keys, `ids` stays as it is; null takes an id away.
void override_token_ids(const std::filesystem::path& folder, TokenIds& ids);

}  // namespace larder
