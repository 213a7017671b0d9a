#include "larder/cache/registry.h"

#include "larder/base/error.h"
#include "larder/cache/kinds.h"

namespace larder {

CacheRegistry::CacheRegistry() {
  add({"dynamic", make_dynamic_layer, false});
  add({"dynamic_full", make_dynamic_layer, false});
  add({"static", make_static_layer, true});
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

Cache CacheRegistry::make(std::string_view name, std::span<const LayerSpec> layers,
                          const CacheOptions& options, Allocator& allocator) const {
  const CacheKind& kind = find(name);
  if (options.dtype != DType::kF32 && options.dtype != DType::kF16 &&
      options.dtype != DType::kBF16) {
    fail("a KV cache of dtype ", dtype_name(options.dtype), " is not built; use f32, f16 or bf16");
  }
  if (kind.needs_max_cache_len && options.max_cache_len <= 0) {
    fail("max_cache_len ", options.max_cache_len, " for the cache ", in_quotes(name),
         "; it must be at least 1");
  }
  std::vector<std::unique_ptr<CacheLayer>> made;
  made.reserve(layers.size());
  for (const LayerSpec& spec : layers) {
    LARDER_ASSERT(spec.num_kv_heads > 0 && spec.head_dim > 0);
    made.push_back(kind.make(spec, options, allocator));
  }
  return Cache(std::move(made));
}

}  // namespace larder
