#include "larder/cache/registry.h"

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/kinds.h"

namespace larder {

void refuse_config(std::string_view kind, const CacheOptions& options) {
  if (options.config.empty()) return;
  const Json config = parse_json(options.config, "cache_config");
  if (!config.is_object()) fail("cache_config must be a JSON object");
  if (!config.empty()) {
    fail("cache_config: the cache ", in_quotes(std::string(kind)), " has no setting ",
         in_quotes(config.begin().key()));
  }
}

void check_options(const CacheKind& kind, const CacheOptions& options) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kF16 &&
      options.dtype != DType::kBF16) {
    fail("a KV cache of dtype ", dtype_name(options.dtype), " is not built; use f32, f16 or bf16");
  }
  if (options.rollback < 0) fail("rollback ", options.rollback, " must not be negative");
  if (kind.needs_max_cache_len && options.max_cache_len <= 0) {
    fail("max_cache_len ", options.max_cache_len, " for the cache ", in_quotes(kind.name),
         "; it must be at least 1");
  }
}

CacheRegistry::CacheRegistry() {
  add({"dynamic", make_dynamic_layers, false});
  add({"dynamic_full", make_dynamic_full_layers, false});
  add({"static", make_static_layers, true});
  add({"sliding_window", make_sliding_window_layers, true});
  add({"hybrid", make_hybrid_layers, true});
  add({"hybrid_chunked", make_hybrid_chunked_layers, true});
  add({"encoder_decoder", make_encoder_decoder_layers, false});
  // State layers are the same in every kind; these are the names that recurrent models use.
  add({"mamba", make_dynamic_layers, false});
  add({"recurrent", make_dynamic_layers, false});
  add({"quantized", make_quantized_layers, false});
  add({"offloaded", make_offloaded_layers, false});
  add({"offloaded_static", make_offloaded_static_layers, true});
  add({"offloaded_hybrid", make_offloaded_hybrid_layers, true});
  add({"paged", make_paged_layers, false, true});
}

void CacheRegistry::add(CacheKind kind) {
  for (const CacheKind& known : kinds_) {
    if (known.name == kind.name)
      fail("cache_implementation ", in_quotes(kind.name), " is already registered");
  }
  kinds_.push_back(std::move(kind));
}

std::vector<std::string> CacheRegistry::names() const {
  std::vector<std::string> names;
  for (const CacheKind& kind : kinds_) names.push_back(kind.name);
  return names;
}

const CacheKind& CacheRegistry::find(std::string_view name) const {
  for (const CacheKind& kind : kinds_) {
    if (kind.name == name) return kind;
  }
  fail("unknown cache_implementation ", in_quotes(name), "; there are: ", join(names(), ", "));
}

CacheLayers CacheRegistry::make_layers(std::string_view name, std::span<const LayerSpec> attention,
                                       const CacheOptions& options,
                                       const CacheMemory& memory) const {
  const CacheKind& kind = find(name);
  check_options(kind, options);
  CacheLayers made = kind.make(attention, options, memory);
  LARDER_ASSERT(made.size() == attention.size());
  return made;
}

Cache CacheRegistry::make(std::string_view name, std::span<const LayerSpec> layers,
                          const CacheOptions& options, Allocator& allocator) const {
  std::vector<LayerSpec> attention, cross;
  for (const LayerSpec& spec : layers) {
    LARDER_ASSERT(spec.kind == LayerKind::kState || (spec.num_kv_heads > 0 && spec.head_dim > 0));
    if (spec.kind == LayerKind::kAttention) attention.push_back(spec);
    if (spec.kind == LayerKind::kCross) cross.push_back(spec);
  }
  const CacheMemory memory{std::make_shared<MemoryBlocks>(allocator), allocator};
  CacheLayers made = make_layers(name, attention, options, memory);
  CacheLayers own;
  auto next = made.begin();
  for (const LayerSpec& spec : layers) {
    if (spec.kind == LayerKind::kState) own.push_back(make_state_layer(spec, allocator));
    if (spec.kind == LayerKind::kAttention) own.push_back(std::move(*next++));
  }
  CacheOptions plain = options;  // the settings are the kind's, for its own layers
  plain.config.clear();
  return Cache(std::move(own), make_dynamic_full_layers(cross, plain, memory));
}

}  // namespace larder
