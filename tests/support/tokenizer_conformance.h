// Compares the tokenizer with a folder of reference results.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace larder {

// `folder` holds tokenizer.json and cases.json. Gives one message a mismatch, at most 20: ids with
// and without special tokens, token strings, both decodes, and the stream, piece by piece. Throws
// Error if a file cannot be read.
std::vector<std::string> check_tokenizer_folder(const std::filesystem::path& folder);

}  // namespace larder
