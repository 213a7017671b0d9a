// What a model's keys and values come from, for files that keep them.
#pragma once

#include <filesystem>

#include "larder/cache/cache_file.h"
#include "larder/models/model.h"
#include "larder/tensor/safetensors.h"

namespace larder {

// Of all tensors: name, dtype and shape, and 64 bytes of beginning, middle and end.
std::string weights_fingerprint(const SafetensorsFolder& files);

// Of the model loaded from `folder`: its config.json, without keys that name programs and default
// dtypes, and a fingerprint of the weights with their format in memory. A weight changed elsewhere
// is not noticed; how the tensors are spread over files does not matter.
CacheOrigin cache_origin(const std::filesystem::path& folder, const Model& model);

}  // namespace larder
