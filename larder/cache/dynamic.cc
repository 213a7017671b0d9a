// "dynamic": grows by blocks of 64 tokens and never copies an old token; sliding and chunked layers
// keep what their window needs. "dynamic_full" keeps everything in them too.
#include <algorithm>

#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"
#include "larder/cache/sliding_layer.h"

namespace larder {
namespace {

constexpr int32_t kBlockSize = 64;
constexpr DenseStorage kGrowing{kBlockSize, DenseStorage::kUnbounded};

}  // namespace

CacheLayers make_dynamic_full_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                                     const CacheMemory& memory) {
  refuse_config("dynamic_full", options);
  CacheLayers layers;
  for (const LayerSpec& spec : specs)
    layers.push_back(std::make_unique<DenseLayer>(spec, options.dtype, kGrowing, memory.blocks));
  return layers;
}

CacheLayers make_dynamic_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                                const CacheMemory& memory) {
  refuse_config("dynamic", options);
  CacheLayers layers;
  for (const LayerSpec& spec : specs) {
    if (spec.window == 0) {
      layers.push_back(std::make_unique<DenseLayer>(spec, options.dtype, kGrowing, memory.blocks));
      continue;
    }
    // A row has at most 2^31 - 1 tokens, so a wider ring is never reached.
    const int64_t capacity =
        std::min<int64_t>(checked_add(spec.window - 1, options.rollback), INT32_MAX);
    layers.push_back(std::make_unique<SlidingLayer>(
        spec, options.dtype, SlidingStorage{capacity, kBlockSize, SlidingStorage::kUnbounded},
        memory.blocks));
  }
  return layers;
}

}  // namespace larder
