// "static": storage of a fixed size, taken when a row first appears and kept until reset.
#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"
#include "larder/cache/sliding_layer.h"

namespace larder {

CacheLayers make_fixed_layers(std::string_view kind, std::span<const LayerSpec> specs,
                              const CacheOptions& options, const CacheMemory& memory) {
  refuse_config(kind, options);
  if (options.max_cache_len > INT32_MAX) {
    fail("max_cache_len ", options.max_cache_len, " is past the ", INT32_MAX,
         " tokens a row can have");
  }
  const auto max_len = static_cast<int32_t>(options.max_cache_len);
  CacheLayers layers;
  for (const LayerSpec& spec : specs) {
    if (spec.window == 0) {
      layers.push_back(std::make_unique<DenseLayer>(spec, options.dtype, DenseStorage{max_len, 1},
                                                    memory.blocks));
      continue;
    }
    const int64_t capacity = std::min<int64_t>(checked_add(spec.window, options.rollback), max_len);
    layers.push_back(std::make_unique<SlidingLayer>(
        spec, options.dtype, SlidingStorage{capacity, static_cast<int32_t>(capacity), max_len},
        memory.blocks));
  }
  return layers;
}

CacheLayers make_static_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                               const CacheMemory& memory) {
  return make_fixed_layers("static", specs, options, memory);
}

}  // namespace larder
