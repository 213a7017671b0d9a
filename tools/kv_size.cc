#include "tools/kv_size.h"

#include "larder/base/error.h"

namespace larder::tools {
namespace {

// What a family takes for a key that is absent; null means "derive" in all of them.
struct Defaults {
  std::string_view model_type;
  std::optional<int64_t> num_key_value_heads, head_dim;
};
constexpr Defaults kDefaults[] = {{"mistral", 8, {}}, {"gemma2", 4, 256}};

}  // namespace

ConfigSummary summarize_config(const Json& config, const std::string& what) {
  const JsonFields fields(config, what);
  ConfigSummary s;
  s.model_type = fields.string("model_type").value_or("");
  if (const auto names = fields.strings("architectures"); names && !names->empty())
    s.architecture = names->front();
  s.num_hidden_layers = fields.integer("num_hidden_layers");
  s.hidden_size = fields.integer("hidden_size");
  s.num_attention_heads = fields.integer("num_attention_heads");
  s.num_key_value_heads = fields.integer("num_key_value_heads");
  s.head_dim = fields.integer("head_dim");
  s.vocab_size = fields.integer("vocab_size");
  s.max_position_embeddings = fields.integer("max_position_embeddings");
  s.sliding_window = fields.integer("sliding_window");
  auto dtype = fields.string("dtype");
  if (!dtype) dtype = fields.string("torch_dtype");
  if (dtype) s.dtype = dtype_from_name(*dtype);
  for (const Defaults& family : kDefaults) {
    if (s.model_type != family.model_type) continue;
    if (!fields.has("num_key_value_heads")) s.num_key_value_heads = family.num_key_value_heads;
    if (!fields.has("head_dim")) s.head_dim = family.head_dim;
  }
  if (!s.num_key_value_heads) s.num_key_value_heads = s.num_attention_heads;
  if (!s.head_dim && s.hidden_size && s.num_attention_heads.value_or(0) > 0)
    s.head_dim = *s.hidden_size / *s.num_attention_heads;
  return s;
}

std::optional<int64_t> ConfigSummary::kv_bytes_per_token(DType stored) const {
  int64_t bytes = 2 * static_cast<int64_t>(dtype_size(stored));
  for (const auto& factor : {num_hidden_layers, num_key_value_heads, head_dim}) {
    if (!factor || *factor < 1 || __builtin_mul_overflow(bytes, *factor, &bytes))
      return std::nullopt;
  }
  return bytes;
}

}  // namespace larder::tools
