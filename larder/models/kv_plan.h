// What a model's cache costs, from config.json alone, for any architecture that uses the common
// names: also for families that cannot run here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/base/json_fwd.h"
#include "larder/tensor/dtype.h"

namespace larder {

struct KVPlanConfig {
  int64_t num_kv_heads = 0, head_dim = 0;
  int64_t context = 0;           // the longest that the file names; 0 where it names none
  std::vector<int64_t> windows;  // one an attention layer of the decoder; 0 = sees everything

  int64_t bytes_per_token_per_layer(DType stored) const;
  int64_t bytes_per_token(DType stored) const;  // in all layers
  // One row of `tokens` tokens, without rounding to blocks: every layer keeps every token, or a
  // layer with a window keeps the last `window`.
  int64_t full_bytes(int64_t tokens, DType stored) const;
  int64_t windowed_bytes(int64_t tokens, DType stored) const;
};

// What the allocator hands out for a batch of rows of `tokens` tokens each, prefilled in steps of
// at most 512 tokens, under the kinds whose storage is exact: dynamic, dynamic_full, static,
// sliding_window, hybrid, hybrid_chunked (the fixed ones with max_cache_len = tokens). Refuses
// another kind.
int64_t planned_kv_bytes(const KVPlanConfig& config, std::string_view kind, int64_t tokens,
                         int64_t batch, DType stored);
std::span<const std::string_view> planned_kinds();

// Absent keys are resolved as the family does; the language model of a multimodal file is its
// text_config. Refuses latent attention (kv_lora_rank), whose cache these sizes do not describe,
// and files without the sizes.
KVPlanConfig read_kv_plan_config(const Json& config, const std::string& what);

}  // namespace larder
