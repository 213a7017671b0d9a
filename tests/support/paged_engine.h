// Engines over a small pool.
#pragma once

#include "larder/base/json.h"
#include "larder/generate/engine.h"

namespace larder::test {

inline std::string pool_config(int64_t block_size, int64_t num_blocks) {
  return Json{{"block_size", block_size}, {"num_blocks", num_blocks}}.dump();
}

// The paged cache, with that many blocks for each layer.
inline void use_pool(EngineOptions& options, int64_t block_size, int64_t num_blocks) {
  options.session.cache_implementation = "paged";
  options.session.cache_config = pool_config(block_size, num_blocks);
}

}  // namespace larder::test
