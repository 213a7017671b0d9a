// Defaults are those of transformers' MambaConfig; sizes that decide shapes have none (see
// FamilyDefaults).
#include "larder/models/mamba_config.h"

#include "larder/models/common_config.h"
#include "larder/tensor/shape.h"

namespace larder {
namespace {

constexpr int64_t kMaxLayers = 1 << 16;
constexpr int64_t kMaxWidth = 1 << 24;  // of a layer, so that products of three stay in 64 bits
constexpr int64_t kMaxState = 1 << 12;

void read_sizes(const ConfigReader& reader, MambaConfig& out) {
  out.vocab_size = reader.size("vocab_size", std::nullopt);
  out.hidden_size = reader.size("hidden_size", std::nullopt, kMaxWidth);
  out.num_hidden_layers = reader.size("num_hidden_layers", std::nullopt, kMaxLayers);
  out.state_size = reader.size("state_size", 16, kMaxState);
  out.conv_kernel = reader.size("conv_kernel", 4, kMaxState);
  const int64_t expand = reader.size("expand", 2, 64);
  out.intermediate_size =
      reader.size("intermediate_size", expand * out.hidden_size, 64 * kMaxWidth);
}

// "auto" is a sixteenth of hidden_size, rounded up.
void read_time_step_rank(const ConfigReader& reader, MambaConfig& out) {
  const int64_t automatic = (out.hidden_size + 15) / 16;
  const Json* value = reader.fields().find("time_step_rank");
  const bool is_auto = value && value->is_string() && value->get<std::string>() == "auto";
  out.time_step_rank = is_auto ? automatic : reader.size("time_step_rank", automatic, kMaxWidth);
}

}  // namespace

MambaConfig read_mamba_config(const Json& config, const std::string& what) {
  const JsonFields fields(config, what);
  ConfigProblems problems(what);
  const ConfigReader reader(fields, problems);
  MambaConfig out;
  read_sizes(reader, out);
  read_time_step_rank(reader, out);
  out.layer_norm_epsilon = reader.number("layer_norm_epsilon", 1e-5);
  out.use_bias = reader.flag("use_bias", false);
  out.use_conv_bias = reader.flag("use_conv_bias", true);
  out.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  // Its absence or presence changes nothing here: the residual stream is f32 always.
  reader.flag("residual_in_fp32", true);
  if (const auto act = reader.text("hidden_act"); act && *act != "silu")
    reader.problem("hidden_act ", in_quotes(*act), " is not supported (supported: silu)");
  out.dtype = read_dtype(reader);
  out.token_ids = read_token_ids(reader, {0, 0, std::nullopt, {0}});
  refuse_foreign_keys(reader, {});
  problems.throw_if_any();
  return out;
}

MambaConfig read_mamba_config(const std::filesystem::path& folder_or_file) {
  const ConfigFile file = read_config_file(folder_or_file);
  MambaConfig out = read_mamba_config(file.json, file.what);
  override_token_ids(file.folder, out.token_ids);
  return out;
}

LayerSpec mamba_layer_spec(const MambaConfig& c) {
  LayerSpec spec;
  spec.kind = LayerKind::kState;
  spec.conv_channels = static_cast<int32_t>(c.intermediate_size);
  spec.conv_kernel = static_cast<int32_t>(c.conv_kernel);
  spec.state_size = checked_mul(c.intermediate_size, c.state_size);
  return spec;
}

int64_t num_parameters(const MambaConfig& c) {
  const int64_t inner = c.intermediate_size;
  const int64_t projections =
      checked_mul(c.hidden_size, 3 * inner) + (c.use_bias ? 2 * inner + c.hidden_size : 0);
  const int64_t conv = inner * (c.conv_kernel + (c.use_conv_bias ? 1 : 0));
  const int64_t steps =
      inner * (c.time_step_rank + 2 * c.state_size) + inner * (c.time_step_rank + 1);
  const int64_t recurrence = inner * (c.state_size + 1);
  const int64_t layer = projections + conv + steps + recurrence + c.hidden_size;
  const int64_t embeddings = checked_mul(c.vocab_size, c.hidden_size);
  return checked_add(checked_mul(embeddings, c.tie_word_embeddings ? 1 : 2) + c.hidden_size,
                     checked_mul(c.num_hidden_layers, layer));
}

}  // namespace larder
