// The factories of the built-in cache kinds, each defined in the kind's own file.
#pragma once

#include <memory>

#include "larder/cache/cache.h"

namespace larder {

std::unique_ptr<CacheLayer> make_dynamic_layer(const LayerSpec&, const CacheOptions&, Allocator&);
std::unique_ptr<CacheLayer> make_static_layer(const LayerSpec&, const CacheOptions&, Allocator&);

}  // namespace larder
