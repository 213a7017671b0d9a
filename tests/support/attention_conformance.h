// Runs one case of the conformance folder attention/ (dense attention, computed in double).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "larder/attention/attention.h"

namespace larder::test {

// Reads case.json and tensors.safetensors of `case_folder`, runs that attention with `set`, and
// gives what differs beyond the case's tolerance (the first few elements), or nothing. Throws Error
// for a case that cannot be read.
std::vector<std::string> check_attention_case(const std::filesystem::path& case_folder,
                                              const Kernels& set, AttentionKind kind);

}  // namespace larder::test
