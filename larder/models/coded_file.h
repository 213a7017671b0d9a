// A model's weights in codes, kept in a safetensors file beside the model, so that the next load
// maps them instead of making them (docs/weights.md).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "larder/tensor/coded_matrix.h"
#include "larder/tensor/safetensors.h"

namespace larder {

// One matrix: its name in the model's files, and its codes.
struct NamedCodes {
  std::string name;
  size_t bytes = 0;
  const std::byte* data = nullptr;  // to be written
};

// What the codes were made from and how: names, types, shapes and samples of all tensors, sizes and
// times of the files, the format and the version of its layout.
std::string codes_origin(const SafetensorsFolder& files, WeightFormat format);

// folder/larder-weights-int4.safetensors
std::filesystem::path codes_path(const std::filesystem::path& folder, WeightFormat format);

// The file at `path` if it holds `wanted`, made from `origin`, without damage; otherwise null, with
// the reason in `why`, which stays empty where there is no file.
std::unique_ptr<SafetensorsFile> open_codes(const std::filesystem::path& path,
                                            const std::string& origin,
                                            const std::vector<NamedCodes>& wanted,
                                            std::string& why);

// Writes through a temporary file; throws Error(kIo) and leaves what was there.
void write_codes(const std::filesystem::path& path, const std::string& origin,
                 const std::vector<NamedCodes>& codes);

}  // namespace larder
