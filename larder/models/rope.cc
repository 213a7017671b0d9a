#include "larder/models/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "larder/base/json.h"
#include "larder/models/config_reader.h"

namespace larder {
namespace {

constexpr std::array<std::pair<std::string_view, RopeType>, 5> kTypes = {{
    {"default", RopeType::kDefault},
    {"linear", RopeType::kLinear},
    {"dynamic", RopeType::kDynamic},
    {"llama3", RopeType::kLlama3},
    {"yarn", RopeType::kYarn},
}};

std::string supported_types() {
  std::string names;
  for (const auto& [name, type] : kTypes) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

// Where the scaling stands. rope_parameters is the newer name; a file that has both was written for
// readers of rope_scaling.
std::string_view block_key(const JsonFields& config, ConfigProblems& problems) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    try {
      const Json* block = config.object(key);
      if (block && !block->empty()) return key;
    } catch (const Error& error) {
      problems.add_error(error);
    }
  }
  return "";
}

// What stands in the block and changes the angles or the scores, and is not built here: to drop it
// would change every token silently. Other unknown keys are ignored.
void refuse_unknown_meaning(const ConfigReader& block) {
  for (const std::string_view key : {"llama_4_scaling_beta", "mrope_section", "full_attention",
                                     "sliding_attention", "partial_rotary_factor"}) {
    const Json* value = block.fields().find(key);
    if (!value || value->is_null()) continue;
    if (key == "partial_rotary_factor" && value->is_number() && value->get<double>() == 1) continue;
    block.problem(key, " (", describe(*value), ") is not supported");
  }
}

std::optional<RopeType> read_type(const ConfigReader& block) {
  auto name = block.text("rope_type");
  if (!name) name = block.text("type");
  if (!name) {
    const auto& fields = block.fields();
    const bool named = fields.has("rope_type") || fields.has("type");
    // {"rope_theta": 10000.0} is a whole block in the newer form.
    if (!named && !fields.has("factor")) return RopeType::kDefault;
    if (!named) block.problem("rope_type is missing (supported: ", supported_types(), ")");
    return std::nullopt;
  }
  for (const auto& [known, type] : kTypes)
    if (*name == known) return type;
  block.problem("rope_type ", in_quotes(*name), " is not supported (supported: ", supported_types(),
                ")");
  return std::nullopt;
}

double read_factor(const ConfigReader& block) {
  const double factor = block.number("factor", std::nullopt);
  if (factor > 0 && factor < 1) block.problem("factor must be at least 1, found ", factor);
  return factor;
}

// The length that the unscaled angles were trained for: in the block, or beside it.
int64_t read_original(const ConfigReader& block, const ConfigReader& config,
                      std::optional<int64_t> absent) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const auto present = [&](const JsonFields& fields) {
    return fields.has(kKey) && !fields.is_null(kKey);
  };
  if (!present(block.fields()) && present(config.fields())) return config.size(kKey, absent);
  if (!present(block.fields()) && absent) return *absent;
  return block.size(kKey, absent);
}

void read_llama3(const ConfigReader& block, const ConfigReader& config, RopeConfig& out) {
  out.low_freq_factor = block.number("low_freq_factor", std::nullopt);
  out.high_freq_factor = block.number("high_freq_factor", std::nullopt);
  if (out.low_freq_factor > 0 && out.high_freq_factor > 0 &&
      out.high_freq_factor <= out.low_freq_factor) {
    block.problem("high_freq_factor ", out.high_freq_factor, " must be above low_freq_factor ",
                  out.low_freq_factor);
  }
  out.original_max_position_embeddings = read_original(block, config, std::nullopt);
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Null and 0 stand for "the default" in these fields, as the ecosystem reads them.
double number_or(const ConfigReader& block, std::string_view key, double otherwise) {
  const Json* value = block.fields().find(key);
  if (!value || value->is_null() || (value->is_number() && value->get<double>() == 0))
    return otherwise;
  const double number = block.number(key, otherwise);
  return number > 0 ? number : otherwise;
}

void read_yarn(const ConfigReader& block, const ConfigReader& config,
               int64_t max_position_embeddings, RopeConfig& out) {
  out.original_max_position_embeddings = read_original(block, config, max_position_embeddings);
  out.beta_fast = number_or(block, "beta_fast", 32);
  out.beta_slow = number_or(block, "beta_slow", 1);
  if (out.beta_fast < out.beta_slow)
    block.problem("beta_fast ", out.beta_fast, " is below beta_slow ", out.beta_slow);
  out.truncate = block.flag("truncate", true);
  const double mscale = number_or(block, "mscale", 0);
  const double mscale_all_dim = number_or(block, "mscale_all_dim", 0);
  out.attention_factor = yarn_mscale(out.factor, 1);
  if (mscale > 0 && mscale_all_dim > 0)
    out.attention_factor =
        yarn_mscale(out.factor, mscale) / yarn_mscale(out.factor, mscale_all_dim);
  if (block.fields().has("attention_factor") && !block.fields().is_null("attention_factor"))
    out.attention_factor = block.number("attention_factor", std::nullopt);
}

void read_block(const ConfigReader& block, const ConfigReader& config,
                int64_t max_position_embeddings, RopeConfig& out) {
  refuse_unknown_meaning(block);
  const auto type = read_type(block);
  if (!type || *type == RopeType::kDefault) return;
  out.type = *type;
  out.factor = read_factor(block);
  if (out.type == RopeType::kDynamic) {
    // The limit is max_position_embeddings even beside an original_max_position_embeddings, as in
    // transformers 4.57.
    out.original_max_position_embeddings = max_position_embeddings;
    if (out.dim == 2) block.problem("rope_type dynamic needs more than 2 channels a head");
  }
  if (out.type == RopeType::kLlama3) read_llama3(block, config, out);
  if (out.type == RopeType::kYarn) read_yarn(block, config, max_position_embeddings, out);
}

// The base. Inside the block it wins: the newer form keeps it there. At 1 or below all channels
// would turn alike or ever faster.
double read_theta(const ConfigReader& config, const ConfigReader* block, double default_theta) {
  const bool inside = block && block->fields().has("rope_theta");
  return (inside ? *block : config).number("rope_theta", default_theta, 1);
}

std::vector<double> unscaled(double theta, int64_t dim) {
  std::vector<double> result(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < result.size(); ++i)
    result[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  return result;
}

// The base grows so that the lowest frequency reaches as far as the sequence does.
double dynamic_theta(const RopeConfig& config, int64_t seq_len) {
  const auto limit = static_cast<double>(config.original_max_position_embeddings);
  const double length = std::max(static_cast<double>(seq_len), limit);
  const auto dim = static_cast<double>(config.dim);
  const double growth = config.factor * length / limit - (config.factor - 1);
  return config.theta * std::pow(growth, dim / (dim - 2));
}

// Long waves are slowed by the factor, short ones kept, those between blended.
void scale_llama3(const RopeConfig& config, std::vector<double>& inv_freq) {
  const auto length = static_cast<double>(config.original_max_position_embeddings);
  for (double& freq : inv_freq) {
    const double turns = length * freq / (2 * std::numbers::pi);
    if (turns > config.high_freq_factor) continue;
    if (turns < config.low_freq_factor) {
      freq /= config.factor;
      continue;
    }
    const double kept =
        (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
    freq = (1 - kept) * freq / config.factor + kept * freq;
  }
}

// Channels that turn more than beta_fast times in the original length are kept, those below
// beta_slow slowed by the factor, and a ramp lies between.
void scale_yarn(const RopeConfig& config, std::vector<double>& inv_freq) {
  const auto dim = static_cast<double>(config.dim);
  const auto length = static_cast<double>(config.original_max_position_embeddings);
  const auto channel = [&](double turns) {
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(config.theta));
  };
  double low = channel(config.beta_fast), high = channel(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // a step would divide by zero
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / config.factor * slowed + inv_freq[i] * (1 - slowed);
  }
}

}  // namespace

RopeConfig read_rope_config(const JsonFields& config, int64_t dim, double default_theta,
                            int64_t max_position_embeddings) {
  ConfigProblems problems(config.what());
  const ConfigReader top(config, problems);
  RopeConfig out;
  out.dim = dim;
  if (dim <= 0 || dim % 2 != 0) problems.add("rope needs an even head_dim, found ", dim);
  const std::string_view key = block_key(config, problems);
  if (key.empty()) {
    out.theta = read_theta(top, nullptr, default_theta);
  } else {
    const JsonFields fields(*config.object(key), str(config.what(), ": ", key));
    const ConfigReader block(fields, problems, str(key, ": "));
    out.theta = read_theta(top, &block, default_theta);
    read_block(block, top, max_position_embeddings, out);
  }
  problems.throw_if_any();
  return out;
}

std::vector<double> rope_inv_freq(const RopeConfig& config, int64_t seq_len) {
  const bool dynamic = config.type == RopeType::kDynamic;
  auto inv_freq = unscaled(dynamic ? dynamic_theta(config, seq_len) : config.theta, config.dim);
  if (config.type == RopeType::kLinear)
    for (double& freq : inv_freq) freq /= config.factor;
  if (config.type == RopeType::kLlama3) scale_llama3(config, inv_freq);
  if (config.type == RopeType::kYarn) scale_yarn(config, inv_freq);
  return inv_freq;
}

void rope_cos_sin(std::span<const double> inv_freq, double attention_factor,
                  std::span<const int64_t> positions, float* out) {
  for (const int64_t position : positions) {
    float* cosines = out;
    float* sines = out + inv_freq.size();
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      const double angle = static_cast<double>(position) * inv_freq[i];
      cosines[i] = static_cast<float>(std::cos(angle) * attention_factor);
      sines[i] = static_cast<float>(std::sin(angle) * attention_factor);
    }
    out += 2 * inv_freq.size();
  }
}

}  // namespace larder
