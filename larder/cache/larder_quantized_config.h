// The settings of the quantized cache's own backend, "larder".
#pragma once

#include <string>
#include <vector>

#include "larder/cache/coded_block.h"

namespace larder {

// See docs/caches.md for the keys of the JSON object and their defaults.
struct LarderQuantizedConfig {
  std::vector<CodeRecipe> key, value;  // one a layer
  int64_t residual_length = 128;       // at least so many of a row's newest tokens are exact
  bool hadamard = false;               // keys are stored turned, see tensor/hadamard.h
};

// Reads the JSON object `config` (empty: all defaults) for these layers. Throws Error that names
// the key, its value and what it may be.
LarderQuantizedConfig read_larder_quantized_config(const std::string& config,
                                                   std::span<const LayerSpec> specs);

}  // namespace larder
