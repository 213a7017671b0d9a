// Keys that mean something in other families. A file that borrows one would load, run, and write
// wrong text, so they are refused by name.
#include <algorithm>
#include <array>

#include "larder/base/json.h"
#include "larder/models/common_config.h"

namespace larder {
namespace {

// Which values leave the arithmetic as it is. Null always does.
enum class Neutral : uint8_t {
  kNone,   // only null
  kFalse,  // a switch
  kZero,   // a count
  kOne,    // a multiplier, or a list of them
};

struct ForeignKey {
  std::string_view key;
  Neutral neutral;
};

constexpr std::array kForeignKeys = {
    ForeignKey{"quantization_config", Neutral::kNone},
    // rope
    ForeignKey{"no_rope_layers", Neutral::kOne},  // 1: the layer has rope
    ForeignKey{"partial_rotary_factor", Neutral::kOne},
    ForeignKey{"rope_interleaved", Neutral::kFalse},
    ForeignKey{"rope_local_base_freq", Neutral::kNone},
    // attention
    ForeignKey{"attention_bias", Neutral::kFalse},
    ForeignKey{"attention_multiplier", Neutral::kNone},
    ForeignKey{"query_pre_attn_scalar", Neutral::kNone},
    ForeignKey{"attn_logit_softcapping", Neutral::kNone},
    ForeignKey{"attention_chunk_size", Neutral::kNone},
    ForeignKey{"qk_layernorm", Neutral::kFalse},
    ForeignKey{"use_qk_norm", Neutral::kFalse},
    ForeignKey{"use_bidirectional_attention", Neutral::kFalse},
    ForeignKey{"multi_query", Neutral::kFalse},
    ForeignKey{"alibi", Neutral::kFalse},
    ForeignKey{"q_lora_rank", Neutral::kNone},
    ForeignKey{"kv_lora_rank", Neutral::kNone},
    // blocks
    ForeignKey{"mlp_bias", Neutral::kFalse},
    ForeignKey{"parallel_attn", Neutral::kFalse},
    ForeignKey{"is_encoder_decoder", Neutral::kFalse},
    ForeignKey{"num_local_experts", Neutral::kZero},
    ForeignKey{"n_routed_experts", Neutral::kZero},
    ForeignKey{"embedding_multiplier", Neutral::kOne},
    ForeignKey{"residual_multiplier", Neutral::kOne},
    ForeignKey{"logits_scaling", Neutral::kOne},
    ForeignKey{"final_logit_softcapping", Neutral::kNone},
    ForeignKey{"logits_soft_cap", Neutral::kNone},
};

bool is_number(const Json& value, double wanted) {
  return value.is_number() && value.get<double>() == wanted;
}

bool is_neutral(const Json& value, Neutral neutral) {
  if (value.is_null()) return true;
  switch (neutral) {
    case Neutral::kNone:
      return false;
    case Neutral::kFalse:
      return value.is_boolean() && !value.get<bool>();
    case Neutral::kZero:
      return is_number(value, 0);
    case Neutral::kOne:
      if (!value.is_array()) return is_number(value, 1);
      return std::all_of(value.begin(), value.end(),
                         [](const Json& item) { return is_number(item, 1); });
  }
  return false;
}

}  // namespace

void refuse_foreign_keys(const ConfigReader& reader, std::initializer_list<std::string_view> own) {
  for (const auto& [key, neutral] : kForeignKeys) {
    if (std::find(own.begin(), own.end(), key) != own.end()) continue;
    const Json* value = reader.fields().find(key);
    if (!value || is_neutral(*value, neutral)) continue;
    if (key == "quantization_config") {
      reader.problem(key, ": quantized weights are not supported; use the unquantized model");
    } else {
      reader.problem(key, " (", describe(*value), ") is not supported for this architecture");
    }
  }
}

}  // namespace larder
