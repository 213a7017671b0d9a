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

// Makes the attention layers of one kind, one a spec and in their order; all at once, so that a
// kind may share things between its layers. Blocks are taken from memory.blocks and nowhere else,
// so that a kind can be offloaded, or from a pool of its own (CacheKind::has_own_pool). Throws for
// options.config that it cannot follow.
using MakeCacheLayers = std::vector<std::unique_ptr<CacheLayer>> (*)(
    std::span<const LayerSpec> specs, const CacheOptions& options, const CacheMemory& memory);

struct CacheKind {
  std::string name;
  MakeCacheLayers make = nullptr;
  bool needs_max_cache_len = false;  // its memory is fixed by CacheOptions::max_cache_len
  bool has_own_pool = false;         // takes no block from memory.blocks
};

// Throws for a dtype that no cache stores, and for a missing max_cache_len.
void check_options(const CacheKind& kind, const CacheOptions& options);

// A list of kinds, owned by the program (there is no global one). Starts with the built-in kinds.
class CacheRegistry {
 public:
  CacheRegistry();
  void add(CacheKind kind);  // refuses a name that is taken
  // Throws Error that lists the names there are.
  const CacheKind& find(std::string_view name) const;
  std::vector<std::string> names() const;
  // The kind's layers for attention specs. Throws for an unknown name, a dtype that no cache
  // stores, a missing max_cache_len, a config that the kind refuses.
  std::vector<std::unique_ptr<CacheLayer>> make_layers(std::string_view name,
                                                       std::span<const LayerSpec> attention,
                                                       const CacheOptions& options,
                                                       const CacheMemory& memory) const;
  // One layer per spec: the kind's own for attention; state layers and cross layers (see Cache) are
  // the same in every kind. Throws as make_layers().
  Cache make(std::string_view name, std::span<const LayerSpec> layers, const CacheOptions& options,
             Allocator& allocator) const;

 private:
  std::vector<CacheKind> kinds_;
};

}  // namespace larder
