// "hybrid": the fixed kind under the name that models with full and sliding layers ask for
// (Gemma2).
#include "larder/cache/kinds.h"

namespace larder {

CacheLayers make_hybrid_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                               const CacheMemory& memory) {
  return make_fixed_layers("hybrid", specs, options, memory);
}

}  // namespace larder
