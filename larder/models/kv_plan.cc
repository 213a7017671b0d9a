#include "larder/models/kv_plan.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/models/model.h"
#include "larder/tensor/shape.h"

namespace larder {
namespace {

// What a family takes for absent keys. `pattern`: of so many layers the last one sees everything
// and the others slide; 1 = all slide.
struct Family {
  std::string_view model_type;
  int64_t num_attention_heads, num_key_value_heads, head_dim, context, window, pattern;
};
constexpr Family kFamilies[] = {
    {"mistral", 0, 8, 0, 0, 0, 1},        {"phi3", 0, 0, 0, 0, 0, 1},
    {"gemma2", 0, 4, 256, 8192, 4096, 2}, {"gemma3_text", 8, 4, 256, 131072, 4096, 6},
    {"falcon", 0, 0, 0, 2048, 0, 0},
};
constexpr Family kNone{"", 0, 0, 0, 0, 0, 0};

class Reader {
 public:
  Reader(const Json& config, const std::string& what) : fields_(config, what), what_(what) {
    const std::string type = fields_.string("model_type").value_or("");
    for (const Family& family : kFamilies)
      if (family.model_type == type) family_ = family;
  }

  KVPlanConfig read() const {
    if (fields_.integer("kv_lora_rank"))
      fail_as(ErrorKind::kUnsupported, what_,
              ": kv_lora_rank: latent attention keeps no keys and values of heads");
    const int64_t layers =
        first({"num_decoder_layers", "num_hidden_layers", "num_layers"}).value_or(0);
    if (layers < 1 || layers > kMaxLayers) fail(what_, ": it names no number of layers");
    KVPlanConfig plan;
    plan.windows = read_windows(layers);
    plan.context = first({"max_position_embeddings", "n_positions"}).value_or(family_.context);
    if (!plan.windows.empty()) read_heads(plan);
    return plan;
  }

 private:
  static constexpr int64_t kMaxLayers = 100000;

  std::optional<int64_t> first(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys)
      if (const auto value = fields_.integer(key)) return value;
    return std::nullopt;
  }

  void read_heads(KVPlanConfig& plan) const {
    const int64_t heads =
        first({"num_attention_heads", "num_heads"}).value_or(family_.num_attention_heads);
    plan.num_kv_heads = first({"num_key_value_heads"}).value_or(0);
    if (plan.num_kv_heads == 0 && !fields_.is_null("num_key_value_heads"))
      plan.num_kv_heads = family_.num_key_value_heads;
    if (plan.num_kv_heads == 0)
      plan.num_kv_heads = fields_.boolean("multi_query").value_or(false) ? 1 : heads;
    plan.head_dim = first({"head_dim", "d_kv"}).value_or(family_.head_dim);
    const int64_t hidden = first({"hidden_size", "d_model"}).value_or(0);
    if (plan.head_dim == 0 && heads > 0) plan.head_dim = hidden / heads;
    if (plan.num_kv_heads < 1 || plan.head_dim < 1)
      fail(what_, ": it names no num_key_value_heads and head_dim, nor what they follow from");
    if (plan.num_kv_heads > INT32_MAX || plan.head_dim > INT32_MAX)
      fail(what_, ": ", plan.num_kv_heads, " heads of head_dim ", plan.head_dim,
           " are past what a cache can have");
  }

  // One entry an attention layer.
  std::vector<int64_t> read_windows(int64_t layers) const {
    std::vector<int64_t> windows;
    if (fields_.has("ssm_cfg") || fields_.string("model_type") == "mamba") return windows;
    if (const auto types = fields_.strings("layer_types")) return of_types(*types, layers);
    auto blocks = fields_.strings("_block_types");
    if (!blocks) blocks = fields_.strings("block_types");
    const int64_t window = read_window();
    const int64_t pattern = fields_.integer("sliding_window_pattern").value_or(family_.pattern);
    for (int64_t i = 0; i < layers; ++i) {
      if (blocks && !blocks->empty()) {
        if ((*blocks)[static_cast<size_t>(i) % blocks->size()] == "attention")
          windows.push_back(window);
        continue;
      }
      const bool slides = pattern == 1 || (pattern > 1 && (i + 1) % pattern != 0);
      windows.push_back(slides ? window : 0);
    }
    return windows;
  }

  int64_t read_window() const {
    if (!fields_.boolean("use_sliding_window").value_or(true)) return 0;
    if (fields_.is_null("sliding_window")) return 0;
    return first({"sliding_window", "attention_window_size"}).value_or(family_.window);
  }

  std::vector<int64_t> of_types(const std::vector<std::string>& types, int64_t layers) const {
    if (types.size() != static_cast<size_t>(layers))
      fail(what_, ": layer_types has ", types.size(), " entries for ", layers, " layers");
    std::vector<int64_t> windows;
    for (const std::string& type : types) {
      if (type == "full_attention") windows.push_back(0);
      if (type == "sliding_attention") windows.push_back(read_window());
      if (type == "chunked_attention")
        windows.push_back(fields_.integer("attention_chunk_size").value_or(0));
    }
    return windows;
  }

  JsonFields fields_;
  std::string what_;
  Family family_ = kNone;
};

std::vector<LayerSpec> layers_of(const Json& config, const std::string& what,
                                 const KVPlanConfig& plan) {
  try {
    return Model::outline(config, what, DType::kF32)->cache_layers();
  } catch (const Error&) {  // not built here
  }
  std::vector<LayerSpec> layers;
  for (const int64_t window : plan.windows)
    layers.push_back(
        {static_cast<int32_t>(plan.num_kv_heads), static_cast<int32_t>(plan.head_dim), window});
  return layers;
}

}  // namespace

int64_t KVPlanConfig::bytes_per_token_per_layer(DType stored) const {
  return checked_mul(checked_mul(num_kv_heads, head_dim),
                     2 * static_cast<int64_t>(dtype_size(stored)));
}

int64_t KVPlanConfig::bytes_per_token(DType stored) const {
  return checked_mul(bytes_per_token_per_layer(stored), static_cast<int64_t>(windows.size()));
}

int64_t KVPlanConfig::full_bytes(int64_t tokens, DType stored) const {
  return checked_mul(bytes_per_token(stored), tokens);
}

int64_t KVPlanConfig::windowed_bytes(int64_t tokens, DType stored) const {
  int64_t kept = 0;
  for (const int64_t window : windows)
    kept = checked_add(kept, window > 0 ? std::min(window, tokens) : tokens);
  return checked_mul(kept, bytes_per_token_per_layer(stored));
}

KVPlanConfig read_kv_plan_config(const Json& config, const std::string& what) {
  const Json* text = JsonFields(config, what).object("text_config");
  KVPlanConfig plan = Reader(text != nullptr ? *text : config, what).read();
  plan.layers = layers_of(config, what, plan);
  return plan;
}

}  // namespace larder
