// "static": one block of max_cache_len tokens a row, taken when the row first appears and kept
// until reset.
#include "larder/base/error.h"
#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"

namespace larder {

CacheLayers make_static_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                               const CacheMemory& memory) {
  refuse_config("static", options);
  if (options.max_cache_len > INT32_MAX) {
    fail("max_cache_len ", options.max_cache_len, " is past the ", INT32_MAX,
         " tokens a row can have");
  }
  const auto capacity = static_cast<int32_t>(options.max_cache_len);
  CacheLayers layers;
  for (const LayerSpec& spec : specs) {
    layers.push_back(std::make_unique<DenseLayer>(spec, options.dtype, DenseStorage{capacity, 1},
                                                  memory.blocks));
  }
  return layers;
}

}  // namespace larder
