// cache_implementation name -> cache kind. A kind is one file and one line here; a user's program
// can add its own.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/cache/cache.h"

namespace larder {

// Makes the layer of one kind. `allocator` outlives the layer.
using MakeCacheLayer = std::unique_ptr<CacheLayer> (*)(const LayerSpec& spec,
                                                       const CacheOptions& options,
                                                       Allocator& allocator);

struct CacheKind {
  std::string name;
  MakeCacheLayer make = nullptr;
  bool needs_max_cache_len = false;  // its memory is fixed by CacheOptions::max_cache_len
};

// A list of kinds, owned by the program (there is no global one). Starts with the built-in kinds.
class CacheRegistry {
 public:
  CacheRegistry();
  void add(CacheKind kind);  // refuses a name that is taken
  // Throws Error that lists the names there are.
  const CacheKind& find(std::string_view name) const;
  std::vector<std::string> names() const;
  // One layer per spec. Throws for an unknown name, a dtype that no cache stores, a missing
  // max_cache_len.
  Cache make(std::string_view name, std::span<const LayerSpec> layers, const CacheOptions& options,
             Allocator& allocator) const;

 private:
  std::vector<CacheKind> kinds_;
};

}  // namespace larder
