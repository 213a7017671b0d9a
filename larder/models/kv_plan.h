// What a model's cache costs, from config.json alone, for any architecture that uses the common
// names: also for families that cannot run here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/base/json_fwd.h"
#include "larder/cache/cache.h"
#include "larder/tensor/dtype.h"

namespace larder {

struct KVPlanConfig {
  int64_t num_kv_heads = 0, head_dim = 0;
  int64_t context = 0;           // the longest that the file names; 0 where it names none
  std::vector<int64_t> windows;  // one an attention layer of the decoder; 0 = sees everything
  // What a cache is made of, as Model::cache_layers() has it. Of an architecture that larder cannot
  // run the attention layers alone.
  std::vector<LayerSpec> layers;

  int64_t bytes_per_token_per_layer(DType stored) const;
  int64_t bytes_per_token(DType stored) const;  // in all layers
  // One row of `tokens` tokens, without rounding to blocks: every layer keeps every token, or a
  // layer with a window keeps the last `window`.
  int64_t full_bytes(int64_t tokens, DType stored) const;
  int64_t windowed_bytes(int64_t tokens, DType stored) const;
};

// What a cache is to hold. `options` as CacheRegistry::make has them; max_cache_len becomes
// `tokens`, and a pool that has no size holds all rows.
struct KVLoad {
  std::string kind;
  CacheOptions options;
  int64_t batch = 1, tokens = 0;  // rows, and tokens of each
  int64_t new_tokens = 0;         // those of a row's tokens that are fed one by one at the end
  int64_t source_tokens = 0;      // encoder-decoder models: of each row's source
};

// Blocks of one size of a paged cache's pool.
struct PoolUse {
  std::string what;  // "blocks", "exact blocks"
  int64_t block_bytes = 0, num_blocks = 0;
  int64_t most_taken = 0;  // at once
};

struct KVBytes {
  int64_t kv = 0;             // the most that the allocator has handed out for blocks at once
  int64_t file = 0;           // offloaded kinds: the most that blocks have in the file at once
  int64_t flush_scratch = 0;  // quantized kinds: beside the scratch of the forward
  std::vector<PoolUse> pool;  // paged; empty: no pool
};

// Walks through the steps of a generation: sources, then prompts in steps of at most 512 tokens,
// each row's no longer than its cache's step_limit(), then a token of every row a step. To the byte
// what the allocator hands out for `layers`, in all kinds of planned_kinds(); the file may be
// longer than `file` by gaps between blocks of different sizes. Throws as CacheRegistry::make does,
// for another kind, and Error(kNoRoom) for a pool that the rows do not fit.
KVBytes planned_kv_bytes(std::span<const LayerSpec> layers, const KVLoad& load);
std::span<const std::string_view> planned_kinds();

// Absent keys are resolved as the family does; the language model of a multimodal file is its
// text_config. Refuses latent attention (kv_lora_rank), whose cache these sizes do not describe,
// and files without the sizes.
KVPlanConfig read_kv_plan_config(const Json& config, const std::string& what);

}  // namespace larder
