// "hybrid_chunked": the fixed kind under the name that models with full and chunked layers ask for.
#include "larder/cache/kinds.h"

namespace larder {

CacheLayers make_hybrid_chunked_layers(std::span<const LayerSpec> specs,
                                       const CacheOptions& options, const CacheMemory& memory) {
  return make_fixed_layers("hybrid_chunked", specs, options, memory);
}

}  // namespace larder
