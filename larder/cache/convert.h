// From one cache kind to another in mid-generation: nothing is computed again.
#pragma once

#include <string_view>

#include "larder/cache/registry.h"

namespace larder {

// Makes `to`, an empty layer of any kind, hold the rows that `from` keeps. Takes one copy of the
// layer's rows (tag "convert") besides `to`. Refuses, with both as they were, what `to` cannot
// hold. Exact where both store alike or `to` stores wider.
void convert_layer(const KVLayer& from, KVLayer& to, Allocator& allocator);

// Turns the attention layers of `cache` into those of another kind, one after the other, each old
// one freed before the next is made. State and cross layers stay. Refuses before anything changes:
// an unknown kind or wrong options, a capacity below a row's length, and tokens that a window has
// dropped where the new kind would have to show them. When memory runs out on the way, the layers
// done so far are of the new kind and the others of the old one: the cache stays whole and usable.
void convert_cache(Cache& cache, std::string_view kind, const CacheOptions& options,
                   const CacheRegistry& registry, Allocator& allocator);

}  // namespace larder
