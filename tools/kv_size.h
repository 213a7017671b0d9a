// What config.json says that a model's cache costs, for any architecture that uses the common
// names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "larder/base/json.h"
#include "larder/tensor/dtype.h"

namespace larder::tools {

// Fields that are there, as numbers; nothing is checked against what larder can run.
struct ConfigSummary {
  std::string model_type, architecture;  // "" when absent
  std::optional<int64_t> num_hidden_layers, hidden_size, num_attention_heads, num_key_value_heads,
      head_dim, vocab_size, max_position_embeddings, sliding_window;
  std::optional<DType> dtype;

  // Keys and values of one token in all layers, in `dtype`; nullopt where a field is missing or the
  // product overflows.
  std::optional<int64_t> kv_bytes_per_token(DType stored) const;
};

// Absent and null key heads and head_dim are resolved as the family does (cases 36). Throws Error
// for a field of a wrong type.
ConfigSummary summarize_config(const Json& config, const std::string& what);

}  // namespace larder::tools
