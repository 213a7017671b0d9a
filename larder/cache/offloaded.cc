// "offloaded", "offloaded_static", "offloaded_hybrid": another kind's layers over tiered blocks.
#include <utility>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/kinds.h"
#include "larder/cache/offloaded_layer.h"
#include "larder/cache/registry.h"

namespace larder {
namespace {

struct OffloadConfig {
  std::string folder, cache, cache_config;
};

OffloadConfig read_config(std::string_view kind, const std::string& text, std::string_view inner) {
  OffloadConfig config{"", std::string(inner), ""};
  if (text.empty()) return config;
  const Json json = parse_json(text, "cache_config");
  const JsonFields fields(json, "cache_config");
  for (const auto& [key, value] : json.items()) {
    if (key != "folder" && key != "cache" && key != "cache_config") {
      fail("cache_config: the cache ", in_quotes(std::string(kind)), " has no setting ",
           in_quotes(key), "; it has folder, cache and cache_config");
    }
  }
  config.folder = fields.string("folder").value_or("");
  config.cache = fields.string("cache").value_or(config.cache);
  if (const Json* given = fields.object("cache_config")) config.cache_config = given->dump();
  return config;
}

CacheLayers offload(std::string_view kind, std::string_view inner_kind,
                    std::span<const LayerSpec> specs, const CacheOptions& options,
                    const CacheMemory& memory) {
  const OffloadConfig config = read_config(kind, options.config, inner_kind);
  if (config.cache.starts_with("offloaded"))
    fail("cache_config: cache ", in_quotes(config.cache), " is offloaded already");
  const CacheKind inner = CacheRegistry().find(config.cache);
  if (inner.has_own_pool)
    fail("cache_config: cache ", in_quotes(config.cache), " has a pool of its own in memory");
  if (inner.needs_max_cache_len && options.max_cache_len <= 0) {
    fail("max_cache_len ", options.max_cache_len, " for the cache ", in_quotes(config.cache),
         "; it must be at least 1");
  }
  CacheOptions inner_options = options;
  inner_options.config = config.cache_config;
  const auto blocks = std::make_shared<TieredBlocks>(
      memory.allocator, std::make_unique<TemporaryBlockFile>(config.folder));
  return offload_layers(inner.make(specs, inner_options, {blocks, memory.allocator}), blocks);
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
