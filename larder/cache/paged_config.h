// The settings of the paged cache.
#pragma once

#include <optional>
#include <span>

#include "larder/cache/cache.h"
#include "larder/cache/larder_quantized_config.h"

namespace larder {

// See docs/caches.md for the keys of the JSON object. A pool of num_blocks holds num_blocks *
// block_size tokens in every layer.
struct PagedConfig {
  int32_t block_size = 16;       // tokens, 1..256; quantized: 64
  int64_t num_blocks = 0;        // 0: follows from pool_bytes or pool_share (paged_pool.h)
  int64_t num_exact_blocks = 0;  // quantized: of the second pool, for recent exact tokens; 0: too
  std::optional<int64_t> pool_bytes;
  std::optional<double> pool_share;  // of what the memory limit leaves
  std::optional<LarderQuantizedConfig> quantized;
};

// Throws Error that names the key, its value and what it may be.
PagedConfig read_paged_config(const CacheOptions& options, std::span<const LayerSpec> specs);

}  // namespace larder
