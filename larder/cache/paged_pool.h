// How big the pool of a paged cache is.
#pragma once

#include <span>
#include <vector>

#include "larder/cache/paged_blocks.h"
#include "larder/cache/paged_config.h"

namespace larder {

struct PagedPool {
  PagedConfig config;            // with every number of blocks
  std::vector<PagedSize> sizes;  // smallest first
};

// What the settings ask for, without taking it. Throws as read_paged_config(), and where a pool of
// no block comes out. Needs: a layer at least.
PagedPool plan_paged_pool(const CacheOptions& options, std::span<const LayerSpec> specs,
                          const Allocator& allocator);

}  // namespace larder
