// "dynamic": grows by blocks of 64 tokens and never copies an old token. "dynamic_full" keeps
// everything in sliding layers too.
#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"

namespace larder {

CacheLayers make_dynamic_full_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                                     const CacheMemory& memory) {
  refuse_config("dynamic_full", options);
  constexpr int32_t kBlockSize = 64;
  CacheLayers layers;
  for (const LayerSpec& spec : specs) {
    layers.push_back(std::make_unique<DenseLayer>(
        spec, options.dtype, DenseStorage{kBlockSize, DenseStorage::kUnbounded}, memory.blocks));
  }
  return layers;
}

CacheLayers make_dynamic_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                                const CacheMemory& memory) {
  return make_dynamic_full_layers(specs, options, memory);
}

}  // namespace larder
