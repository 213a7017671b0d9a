// Runs one case of the conformance kind `logits`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace larder {

// Reads case.json and tensors.safetensors of the folder, applies the processors in the order given
// and compares. One line a mismatch (at most eight); empty when all is well. Throws Error for a
// case that cannot be read or names a processor that does not exist.
std::vector<std::string> check_logits_case(const std::filesystem::path& case_folder);

}  // namespace larder
