// Caches whose rows are lists of equal blocks from one pool, so that blocks can be kept or moved
// one by one (prefix cache, swapping).
#pragma once

#include <string>

#include "larder/cache/cache.h"
#include "larder/cache/paged_blocks.h"

namespace larder {

// The pool that layers of the cache take their blocks from; null where none does.
PagedBlocks* paged_pool_of(const Cache& cache);

// Why this cache is none of those; empty when it is one.
std::string why_no_shared_blocks(const Cache& cache);

// The pool of such a cache. Throws Error(kUnsupported) "no `what`: why" for another.
PagedBlocks& shared_pool(const Cache& cache, std::string_view what);

}  // namespace larder
