// What a model's keys and values come from, for files that keep them.
#pragma once

#include <filesystem>

#include "larder/cache/cache_file.h"
#include "larder/models/model.h"

namespace larder {

// Of the model loaded from `folder`: its config.json, without keys that name programs and default
// dtypes, and a fingerprint of the weights: each tensor's name, dtype and shape, and 64 bytes of
// its beginning, middle and end. A weight changed elsewhere is not noticed; how the tensors are
// spread over files does not matter.
CacheOrigin cache_origin(const std::filesystem::path& folder, const Model& model);

}  // namespace larder
