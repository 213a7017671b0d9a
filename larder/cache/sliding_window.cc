// "sliding_window": the fixed kind under the name that models whose layers all slide ask for
// (Mistral).
#include "larder/cache/kinds.h"

namespace larder {

CacheLayers make_sliding_window_layers(std::span<const LayerSpec> specs,
                                       const CacheOptions& options, const CacheMemory& memory) {
  return make_fixed_layers("sliding_window", specs, options, memory);
}

}  // namespace larder
