// "offloaded", "offloaded_static", "offloaded_hybrid": another kind's layers over tiered blocks.
#include <utility>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/inner_kind.h"
#include "larder/cache/kinds.h"
#include "larder/cache/offloaded_layer.h"

namespace larder {
namespace {

CacheLayers offload(std::string_view kind, std::string_view inner_kind,
                    std::span<const LayerSpec> specs, const CacheOptions& options,
                    const CacheMemory& memory) {
  const InnerKind inner = read_inner_kind(kind, inner_kind, options, {"folder"});
  if (inner.kind.name.starts_with("offloaded"))
    fail("cache_config: cache ", in_quotes(inner.kind.name), " is offloaded already");
  if (inner.kind.has_own_pool)
    fail("cache_config: cache ", in_quotes(inner.kind.name), " has a pool of its own in memory");
  std::string folder;
  if (!options.config.empty()) {
    const Json json = parse_json(options.config, "cache_config");
    folder = JsonFields(json, "cache_config").string("folder").value_or("");
  }
  const auto blocks = std::make_shared<TieredBlocks>(memory.allocator,
                                                     std::make_unique<TemporaryBlockFile>(folder));
  return offload_layers(inner.kind.make(specs, inner.options, {blocks, memory.allocator}), blocks);
}

}  // namespace

CacheLayers offload_layers(CacheLayers inner, const std::shared_ptr<TieredBlocks>& blocks) {
  const auto group = std::make_shared<OffloadGroup>(blocks, inner.size());
  CacheLayers layers;
  for (std::unique_ptr<CacheLayer>& layer : inner) {
    layers.push_back(
        std::make_unique<OffloadedLayer>(group, layers.size(), kv_layer(std::move(layer))));
  }
  return layers;
}

CacheLayers make_offloaded_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                                  const CacheMemory& memory) {
  return offload("offloaded", "dynamic", specs, options, memory);
}

CacheLayers make_offloaded_static_layers(std::span<const LayerSpec> specs,
                                         const CacheOptions& options, const CacheMemory& memory) {
  return offload("offloaded_static", "static", specs, options, memory);
}

CacheLayers make_offloaded_hybrid_layers(std::span<const LayerSpec> specs,
                                         const CacheOptions& options, const CacheMemory& memory) {
  return offload("offloaded_hybrid", "hybrid", specs, options, memory);
}

}  // namespace larder
