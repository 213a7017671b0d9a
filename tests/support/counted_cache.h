// A cache kind with a pool of a fixed number of blocks, for tests of what happens when it is full.
#pragma once

#include <memory>
#include <string>

#include "larder/cache/registry.h"
#include "larder/generate/engine.h"

namespace larder::test {

// The built-in kinds and "counted": blocks of block_size tokens for full attention, of which there
// are num_blocks for every layer, all layers together. Config: {"block_size": 4, "num_blocks": 6}.
CacheRegistry registry_with_counted();
std::string counted_config(int64_t block_size, int64_t num_blocks);
// The view of such a cache's pool; counts what its rows hold.
std::unique_ptr<PoolView> counted_pool_view(const Cache& cache, int64_t block_size,
                                            int64_t num_blocks);
// An engine with these options and that registry has such a cache.
void use_pool(EngineOptions& options, int64_t block_size, int64_t num_blocks);

}  // namespace larder::test
