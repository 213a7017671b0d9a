// "encoder_decoder": another kind for the decoder's own layers, beside the cross layers that every
// cache of an encoder-decoder model has. Settings: "cache", the kind's name ("dynamic" when
// absent), and "cache_config", its settings.
#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/kinds.h"
#include "larder/cache/registry.h"

namespace larder {

CacheLayers make_encoder_decoder_layers(std::span<const LayerSpec> specs,
                                        const CacheOptions& options, const CacheMemory& memory) {
  constexpr const char* kSelf = "encoder_decoder";
  const std::string text = options.config.empty() ? "{}" : options.config;
  const Json config = parse_json(text, "cache_config");
  const JsonFields fields(config, "cache_config");
  for (const auto& [key, value] : config.items()) {
    if (key != "cache" && key != "cache_config")
      fail("cache_config: the cache ", in_quotes(kSelf), " has no setting ", in_quotes(key));
  }
  const std::string name = fields.string("cache").value_or("dynamic");
  if (name == kSelf) fail("cache_config: cache ", in_quotes(name), " within itself");
  const CacheRegistry registry;
  const CacheKind& kind = registry.find(name);
  if (kind.needs_max_cache_len && options.max_cache_len <= 0) {
    fail("max_cache_len ", options.max_cache_len, " for the cache ", in_quotes(name),
         "; it must be at least 1");
  }
  CacheOptions inner = options;
  const Json* settings = fields.object("cache_config");
  inner.config = settings ? settings->dump() : "";
  return kind.make(specs, inner, memory);
}

}  // namespace larder
