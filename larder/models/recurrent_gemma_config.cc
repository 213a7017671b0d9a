// Defaults are those of transformers' RecurrentGemmaConfig; sizes that decide shapes have none (see
// FamilyDefaults).
#include "larder/models/recurrent_gemma_config.h"

#include <algorithm>
#include <limits>

#include "larder/models/common_config.h"
#include "larder/tensor/shape.h"

namespace larder {
namespace {

constexpr int64_t kMaxLayers = 1 << 16;
constexpr int64_t kMaxWidth = 1 << 24;  // so that products of two, in bytes, stay in 64 bits
constexpr int64_t kMaxHeadDim = 1 << 16;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

void read_sizes(const ConfigReader& reader, RecurrentGemmaConfig& out) {
  out.vocab_size = reader.size("vocab_size", std::nullopt);
  out.hidden_size = reader.size("hidden_size", std::nullopt, kMaxWidth);
  out.intermediate_size = reader.size("intermediate_size", std::nullopt, kMaxWidth);
  out.num_hidden_layers = reader.size("num_hidden_layers", std::nullopt, kMaxLayers);
  out.num_attention_heads = reader.size("num_attention_heads", std::nullopt, kMaxHeadDim);
  out.num_key_value_heads =
      reader.size_or_null("num_key_value_heads", std::nullopt, out.num_attention_heads);
  out.attention_window_size = reader.size("attention_window_size", 2048);
  out.conv1d_width = reader.size("conv1d_width", 4, 1 << 12);
  out.lru_width = reader.size_or_null("lru_width", std::nullopt, out.hidden_size, kMaxWidth);
  out.max_position_embeddings = reader.size("max_position_embeddings", kNoLimit, kNoLimit);
  if (out.intermediate_size % 2 != 0)
    reader.problem("intermediate_size ", out.intermediate_size,
                   " is not even: it counts gate and up together");
}

void read_heads(const ConfigReader& reader, RecurrentGemmaConfig& out) {
  const int64_t heads = out.num_attention_heads, kv_heads = out.num_key_value_heads;
  if (heads == 0) return;
  if (kv_heads > 0 && heads % kv_heads != 0)
    reader.problem("num_attention_heads ", heads, " is not a multiple of num_key_value_heads ",
                   kv_heads);
  if (out.lru_width % heads != 0)
    reader.problem("lru_width ", out.lru_width, " is not a multiple of num_attention_heads ",
                   heads);
  out.head_dim = reader.size_or_null("head_dim", std::nullopt, 0, kMaxHeadDim);
  if (out.head_dim > 0 || (reader.fields().has("head_dim") && !reader.fields().is_null("head_dim")))
    return;
  if (out.hidden_size % heads != 0)
    reader.problem("hidden_size ", out.hidden_size, " is not a multiple of num_attention_heads ",
                   heads, " and there is no head_dim");
  out.head_dim = std::min(out.hidden_size / heads, kMaxHeadDim);
}

// The pattern is repeated and cut to the number of layers. Files have it under either name.
void read_block_types(const ConfigReader& reader, RecurrentGemmaConfig& out) {
  const auto list = reader.fields().has("_block_types") ? reader.texts("_block_types")
                                                        : reader.texts("block_types");
  const auto pattern =
      list.value_or(std::vector<std::string>{"recurrent", "recurrent", "attention"});
  if (pattern.empty()) return reader.problem("block_types is empty");
  for (const std::string& name : pattern) {
    if (name != "recurrent" && name != "attention")
      return reader.problem("block_types: ", in_quotes(name),
                            " is not supported (supported: recurrent, attention)");
  }
  for (int64_t layer = 0; layer < out.num_hidden_layers; ++layer) {
    const std::string& name = pattern[static_cast<size_t>(layer) % pattern.size()];
    out.block_types.push_back(name == "attention" ? BlockType::kAttention : BlockType::kRecurrent);
  }
}

void read_rope(const ConfigReader& reader, RecurrentGemmaConfig& out) {
  const double factor = reader.number("partial_rotary_factor", 0.5);
  if (factor > 1) reader.problem("partial_rotary_factor ", factor, " is above 1");
  out.rope.theta = reader.number("rope_theta", 10000);
  out.rope.dim = static_cast<int64_t>(static_cast<double>(out.head_dim) * std::min(factor, 1.0));
  if (out.rope.dim % 2 != 0)
    reader.problem("partial_rotary_factor ", factor, " of head_dim ", out.head_dim, " is ",
                   out.rope.dim, " channels; rope turns pairs");
  const Json* scaling = reader.fields().find("rope_scaling");
  if (scaling && !scaling->is_null())
    reader.problem("rope_scaling (", describe(*scaling),
                   ") is not supported for this architecture");
}

}  // namespace

RecurrentGemmaConfig read_recurrent_gemma_config(const Json& config, const std::string& what) {
  const JsonFields fields(config, what);
  ConfigProblems problems(what);
  const ConfigReader reader(fields, problems);
  RecurrentGemmaConfig out;
  read_sizes(reader, out);
  read_heads(reader, out);
  read_block_types(reader, out);
  read_rope(reader, out);
  out.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
  out.logits_soft_cap = reader.number_or_null("logits_soft_cap", 30);
  out.attention_bias = reader.flag("attention_bias", false);
  out.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  if (!reader.flag("embeddings_scale_by_sqrt_dim", true))
    reader.problem("embeddings_scale_by_sqrt_dim false is not supported");
  out.hidden_activation =
      read_activation(reader, "hidden_activation", Activation::kGeluTanh, NullActivation::kRefused);
  out.dtype = read_dtype(reader);
  out.token_ids = read_token_ids(reader, {2, 0, std::nullopt, {1}});
  refuse_foreign_keys(reader, {"attention_bias", "partial_rotary_factor", "logits_soft_cap"});
  problems.throw_if_any();
  return out;
}

RecurrentGemmaConfig read_recurrent_gemma_config(const std::filesystem::path& folder_or_file) {
  const ConfigFile file = read_config_file(folder_or_file);
  RecurrentGemmaConfig out = read_recurrent_gemma_config(file.json, file.what);
  override_token_ids(file.folder, out.token_ids);
  return out;
}

std::vector<LayerSpec> recurrent_gemma_layer_specs(const RecurrentGemmaConfig& c) {
  std::vector<LayerSpec> specs;
  for (const BlockType type : c.block_types) {
    LayerSpec spec;
    if (type == BlockType::kAttention) {
      spec.num_kv_heads = static_cast<int32_t>(c.num_key_value_heads);
      spec.head_dim = static_cast<int32_t>(c.head_dim);
      spec.window = c.attention_window_size;
    } else {
      spec.kind = LayerKind::kState;
      spec.conv_channels = static_cast<int32_t>(c.lru_width);
      spec.conv_kernel = static_cast<int32_t>(c.conv1d_width) - 1;
      spec.state_size = c.lru_width;
    }
    specs.push_back(spec);
  }
  return specs;
}

int64_t num_parameters(const RecurrentGemmaConfig& c) {
  const int64_t hidden = c.hidden_size, lru = c.lru_width, inner = c.intermediate_size / 2;
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  const int64_t attention =
      checked_mul(hidden, 2 * (q + kv)) + hidden + (c.attention_bias ? q + 2 * kv : 0);
  const int64_t gates = 2 * (lru * (lru / c.num_attention_heads) + lru) + lru;
  const int64_t recurrent =
      checked_mul(hidden, 3 * lru) + 2 * lru + hidden + lru * (c.conv1d_width + 1) + gates;
  const int64_t mlp = checked_mul(hidden, 3 * inner) + 2 * inner + hidden;
  int64_t sum = checked_mul(c.vocab_size, hidden) * (c.tie_word_embeddings ? 1 : 2) + hidden;
  for (const BlockType type : c.block_types)
    sum += (type == BlockType::kAttention ? attention : recurrent) + mlp + 2 * hidden;
  return sum;
}

}  // namespace larder
