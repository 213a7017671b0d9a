// Defaults are those of transformers' T5Config; sizes that decide shapes have none (see
// FamilyDefaults).
#include "larder/models/t5_config.h"

#include "larder/models/common_config.h"
#include "larder/tensor/shape.h"

namespace larder {
namespace {

constexpr int64_t kMaxLayers = 1 << 16;
constexpr int64_t kMaxWidth = 1 << 24;  // so that products of two, in bytes, stay in 64 bits
constexpr int64_t kMaxHeads = 1 << 16;
constexpr int64_t kMaxBuckets = 1 << 16;

void read_sizes(const ConfigReader& reader, T5Config& out) {
  out.vocab_size = reader.size("vocab_size", std::nullopt);
  out.d_model = reader.size("d_model", std::nullopt, kMaxWidth);
  out.d_kv = reader.size("d_kv", std::nullopt, kMaxHeads);
  out.d_ff = reader.size("d_ff", std::nullopt, kMaxWidth);
  out.num_layers = reader.size("num_layers", std::nullopt, kMaxLayers);
  out.num_decoder_layers =
      reader.size_or_null("num_decoder_layers", std::nullopt, out.num_layers, kMaxLayers);
  out.num_heads = reader.size("num_heads", std::nullopt, kMaxHeads);
}

void read_buckets(const ConfigReader& reader, T5Config& out) {
  out.relative_attention_num_buckets =
      reader.size("relative_attention_num_buckets", 32, kMaxBuckets);
  out.relative_attention_max_distance =
      reader.size("relative_attention_max_distance", 128, 1 << 16);
  const int64_t buckets = out.relative_attention_num_buckets;
  // Half of an encoder's are for each side, and half of those are exact: there must be one. Past
  // the exact ones, of which a decoder has most, distances grow up to the largest.
  if (buckets > 0 && buckets < 4)
    reader.problem("relative_attention_num_buckets ", buckets, " must be at least 4");
  if (out.relative_attention_max_distance > 0 &&
      out.relative_attention_max_distance <= buckets / 2) {
    reader.problem("relative_attention_max_distance ", out.relative_attention_max_distance,
                   " must be above half of relative_attention_num_buckets ", buckets);
  }
}

void read_feed_forward(const ConfigReader& reader, T5Config& out) {
  const std::string name = reader.text("feed_forward_proj").value_or("relu");
  out.is_gated_act = name != "relu";
  if (name == "gated-silu") out.act = Activation::kSilu;
  if (name == "relu" || name == "gated-gelu" || name == "gated-silu") return;
  reader.problem("feed_forward_proj ", in_quotes(name),
                 " is not supported (supported: relu, gated-gelu, gated-silu)");
}

}  // namespace

T5Config read_t5_config(const Json& config, const std::string& what) {
  const JsonFields fields(config, what);
  ConfigProblems problems(what);
  const ConfigReader reader(fields, problems);
  T5Config out;
  read_sizes(reader, out);
  read_buckets(reader, out);
  read_feed_forward(reader, out);
  out.layer_norm_epsilon = reader.number("layer_norm_epsilon", 1e-6);
  out.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  if (!reader.flag("is_encoder_decoder", true))
    reader.problem("is_encoder_decoder false: an encoder or a decoder alone is not supported");
  out.dtype = read_dtype(reader);
  out.token_ids = read_token_ids(reader, {std::nullopt, 0, std::nullopt, {1}});
  refuse_foreign_keys(reader, {"is_encoder_decoder"});
  problems.throw_if_any();
  return out;
}

T5Config read_t5_config(const std::filesystem::path& folder_or_file) {
  const ConfigFile file = read_config_file(folder_or_file);
  T5Config out = read_t5_config(file.json, file.what);
  override_token_ids(file.folder, out.token_ids);
  // Files that name no start mean the padding.
  if (!out.token_ids.decoder_start_token_id)
    out.token_ids.decoder_start_token_id = out.token_ids.pad_token_id;
  return out;
}

std::vector<LayerSpec> t5_layer_specs(const T5Config& c) {
  LayerSpec spec;
  spec.num_kv_heads = static_cast<int32_t>(c.num_heads);
  spec.head_dim = static_cast<int32_t>(c.d_kv);
  std::vector<LayerSpec> specs(static_cast<size_t>(c.num_decoder_layers), spec);
  spec.kind = LayerKind::kCross;
  specs.insert(specs.end(), static_cast<size_t>(c.num_decoder_layers), spec);
  return specs;
}

int64_t num_parameters(const T5Config& c) {
  const int64_t attention = checked_mul(4 * c.d_model, c.num_heads * c.d_kv);
  const int64_t feed_forward = checked_mul(c.d_model, c.d_ff) * (c.is_gated_act ? 3 : 2);
  const int64_t encoder = attention + feed_forward + 2 * c.d_model;
  const int64_t decoder = 2 * attention + feed_forward + 3 * c.d_model;
  const int64_t embeddings = checked_mul(c.vocab_size, c.d_model) * (c.tie_word_embeddings ? 1 : 2);
  const int64_t outside = 2 * (c.d_model + c.relative_attention_num_buckets * c.num_heads);
  return embeddings + outside +
         checked_add(checked_mul(c.num_layers, encoder),
                     checked_mul(c.num_decoder_layers, decoder));
}

}  // namespace larder
