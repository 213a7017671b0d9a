// Real configurations of public models, each with what a right reader resolves from it
// (tests/data/configs/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/models/decoder_config.h"
#include "larder/models/family.h"
#include "larder/models/mamba_config.h"
#include "larder/models/model.h"
#include "larder/models/recurrent_gemma_config.h"
#include "larder/models/sizes.h"
#include "larder/models/t5_config.h"
#include "tests/support/source_dir.h"

namespace larder {
namespace {

std::filesystem::path folder() { return test::source_path("tests/data/configs"); }

const Json& index() {
  static const Json kIndex = parse_json(read_file(folder() / "index.json"), "index.json");
  return kIndex;
}

Json config_of(const Json& entry) {
  const auto file = entry["file"].get<std::string>();
  return parse_json(read_file(folder() / file), file);
}

// The index's numbers are float32 results in eight digits.
void expect_near(double got, const Json& want) { EXPECT_NEAR(got / want.get<double>(), 1, 2e-6); }

void expect_frequencies(const std::vector<double>& got, const Json& want) {
  ASSERT_EQ(got.size(), want["n"].get<size_t>());
  expect_near(got.front(), want["inv_freq_first"]);
  expect_near(got[got.size() / 2], want["inv_freq_mid"]);
  expect_near(got.back(), want["inv_freq_last"]);
}

void expect_rope(const RopeConfig& rope, const Json& want, int64_t context) {
  EXPECT_EQ(rope.dim, want["dim"].get<int64_t>());
  EXPECT_EQ(rope.theta, want["theta"].get<double>());
  expect_frequencies(rope_inv_freq(rope, context), want);
  expect_near(rope.attention_factor, want["attention_factor"]);
  if (want.contains("at_twice_context"))
    expect_frequencies(rope_inv_freq(rope, 2 * context), want["at_twice_context"]);
}

std::string name_of(LayerType type) {
  if (type == LayerType::kFullAttention) return "full_attention";
  return type == LayerType::kSlidingAttention ? "sliding_attention" : "chunked_attention";
}

void expect_sizes(const DecoderConfig& got, const Json& want) {
  EXPECT_EQ(got.num_hidden_layers, want["num_hidden_layers"].get<int64_t>());
  EXPECT_EQ(got.hidden_size, want["hidden_size"].get<int64_t>());
  EXPECT_EQ(got.num_attention_heads, want["num_attention_heads"].get<int64_t>());
  EXPECT_EQ(got.num_key_value_heads, want["num_key_value_heads"].get<int64_t>());
  EXPECT_EQ(got.head_dim, want["head_dim"].get<int64_t>());
  EXPECT_EQ(got.intermediate_size, want["intermediate_size"].get<int64_t>());
  EXPECT_EQ(got.vocab_size, want["vocab_size"].get<int64_t>());
  EXPECT_EQ(got.max_position_embeddings, want["context"].get<int64_t>());
  EXPECT_EQ(got.sliding_window, want["window"].is_null() ? 0 : want["window"].get<int64_t>());
}

void expect_resolved(const DecoderConfig& got, const Json& entry) {
  const Json& want = entry["resolved"];
  expect_sizes(got, want);
  EXPECT_EQ(got.tie_word_embeddings, want["tie_word_embeddings"].get<bool>());
  EXPECT_EQ(got.eos_token_ids, want["eos_token_ids"].get<std::vector<int64_t>>());
  EXPECT_EQ(got.rms_norm_eps, want["norm_eps"].get<double>());
  expect_near(got.attention_scale, want["attention_scale"]);
  ASSERT_TRUE(got.dtype);
  EXPECT_EQ(got.dtype, dtype_from_name(want["dtype"].get<std::string>()));
  const Json& types = entry["layer_types"];
  ASSERT_EQ(got.layer_types.size(), types.size());
  for (size_t i = 0; i < types.size(); ++i)
    EXPECT_EQ(name_of(got.layer_types[i]), types[i].get<std::string>()) << "layer " << i;
  expect_rope(got.rope, entry["rope"], got.max_position_embeddings);
  EXPECT_EQ(kv_bytes_per_token(got, DType::kBF16), entry["kv"]["bytes_per_token"].get<int64_t>());
  EXPECT_EQ(kv_bytes_per_token_per_layer(got, DType::kBF16),
            entry["kv"]["bytes_per_token_per_layer"].get<int64_t>());
  if (entry["params"].value("scope", "") == "whole model") {
    EXPECT_EQ(num_parameters(got), entry["params"]["computed"].get<int64_t>());
  }
}

// One line that names the architecture, or one of the keys that the index lists.
void expect_refused(const Json& config, const std::string& file) {
  try {
    read_decoder_config(config, file);
    ADD_FAILURE() << "was read";
  } catch (const Error& error) {
    const std::string line = error.what();
    const auto architecture = config["architectures"][0].get<std::string>();
    EXPECT_NE(line.find(architecture), std::string::npos) << line;
    EXPECT_NE(line.find(supported_architectures()), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

// Bytes of state of one row as the index counts them: both parts in bf16, or the state in f32.
int64_t conv_bytes(const LayerSpec& spec) {
  return 2 * int64_t{spec.conv_channels} * spec.conv_kernel;
}

TEST(ConfigsFolder, Mamba) {
  const Json& entry = index()["mamba-130m"];
  const MambaConfig got = read_mamba_config(folder() / "mamba-130m.json");
  const Json& want = entry["resolved"];
  EXPECT_EQ(got.num_hidden_layers, want["num_hidden_layers"].get<int64_t>());
  EXPECT_EQ(got.hidden_size, want["hidden_size"].get<int64_t>());
  EXPECT_EQ(got.intermediate_size, want["intermediate_size"].get<int64_t>());
  EXPECT_EQ(got.vocab_size, want["vocab_size"].get<int64_t>());
  EXPECT_EQ(got.layer_norm_epsilon, want["norm_eps"].get<double>());
  EXPECT_EQ(got.tie_word_embeddings, want["tie_word_embeddings"].get<bool>());
  EXPECT_EQ(got.token_ids.eos_token_ids, want["eos_token_ids"].get<std::vector<int64_t>>());
  EXPECT_EQ(got.dtype, DType::kF32);
  EXPECT_EQ(num_parameters(got), entry["params"]["computed"].get<int64_t>());
  const LayerSpec spec = mamba_layer_spec(got);
  EXPECT_EQ(conv_bytes(spec), entry["state"]["conv_bytes_per_layer"].get<int64_t>());
  EXPECT_EQ(2 * spec.state_size, entry["state"]["ssm_bytes_per_layer"].get<int64_t>());
}

TEST(ConfigsFolder, RecurrentGemma) {
  const Json& entry = index()["recurrentgemma-2b"];
  const RecurrentGemmaConfig got = read_recurrent_gemma_config(folder() / "recurrentgemma-2b.json");
  const Json& want = entry["resolved"];
  EXPECT_EQ(got.num_hidden_layers, want["num_hidden_layers"].get<int64_t>());
  EXPECT_EQ(got.hidden_size, want["hidden_size"].get<int64_t>());
  EXPECT_EQ(got.intermediate_size / 2, want["mlp_width_each"].get<int64_t>());
  EXPECT_EQ(got.num_attention_heads, want["num_attention_heads"].get<int64_t>());
  EXPECT_EQ(got.num_key_value_heads, want["num_key_value_heads"].get<int64_t>());
  EXPECT_EQ(got.head_dim, want["head_dim"].get<int64_t>());
  EXPECT_EQ(got.attention_window_size, want["window"].get<int64_t>());
  EXPECT_EQ(got.max_position_embeddings, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(got.tie_word_embeddings, want["tie_word_embeddings"].get<bool>());
  EXPECT_EQ(got.token_ids.eos_token_ids, want["eos_token_ids"].get<std::vector<int64_t>>());
  EXPECT_EQ(got.rms_norm_eps, want["norm_eps"].get<double>());
  EXPECT_EQ(num_parameters(got), entry["params"]["computed"].get<int64_t>());
  const Json& types = entry["layer_types"];
  const std::vector<LayerSpec> specs = recurrent_gemma_layer_specs(got);
  ASSERT_EQ(specs.size(), types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const bool state = specs[i].kind == LayerKind::kState;
    EXPECT_EQ(state ? "recurrent" : "sliding_attention", types[i].get<std::string>()) << i;
    EXPECT_EQ(specs[i].window, state ? 0 : want["window"].get<int64_t>()) << i;
  }
  EXPECT_EQ(conv_bytes(specs[0]), entry["state"]["conv_bytes_per_layer"].get<int64_t>());
  EXPECT_EQ(4 * specs[0].state_size, entry["state"]["lru_bytes_per_layer"].get<int64_t>());
  expect_frequencies(rope_inv_freq(got.rope), entry["rope"]);
}

TEST(ConfigsFolder, T5) {
  const Json& entry = index()["t5-small"];
  const T5Config got = read_t5_config(folder() / "t5-small.json");
  const Json& want = entry["resolved"];
  EXPECT_EQ(got.num_decoder_layers, want["num_hidden_layers"].get<int64_t>());
  EXPECT_EQ(got.num_layers, want["num_encoder_layers"].get<int64_t>());
  EXPECT_EQ(got.d_model, want["hidden_size"].get<int64_t>());
  EXPECT_EQ(got.num_heads, want["num_attention_heads"].get<int64_t>());
  EXPECT_EQ(got.d_kv, want["head_dim"].get<int64_t>());
  EXPECT_EQ(got.d_ff, want["intermediate_size"].get<int64_t>());
  EXPECT_EQ(got.vocab_size, want["vocab_size"].get<int64_t>());
  EXPECT_EQ(got.tie_word_embeddings, want["tie_word_embeddings"].get<bool>());
  EXPECT_EQ(got.token_ids.eos_token_ids, want["eos_token_ids"].get<std::vector<int64_t>>());
  EXPECT_EQ(got.token_ids.decoder_start_token_id, 0);
  EXPECT_EQ(got.layer_norm_epsilon, want["norm_eps"].get<double>());
  EXPECT_FALSE(got.is_gated_act);
  EXPECT_EQ(got.relative_attention_max_distance, 128);
  EXPECT_EQ(num_parameters(got), entry["params"]["computed"].get<int64_t>());
  int64_t self_bytes = 0, cross_bytes = 0;  // a token, in bf16
  for (const LayerSpec& spec : t5_layer_specs(got)) {
    int64_t& sum = spec.kind == LayerKind::kCross ? cross_bytes : self_bytes;
    sum += 4 * int64_t{spec.num_kv_heads} * spec.head_dim;
  }
  EXPECT_EQ(self_bytes, entry["kv"]["bytes_per_token"].get<int64_t>());
  EXPECT_EQ(512 * cross_bytes, entry["kv"]["cross_bytes_at_512_source_tokens"].get<int64_t>());
}

TEST(ConfigsFolder, EveryFileResolvesOrIsRefusedByName) {
  int resolved = 0, refused = 0;
  for (const auto& [name, entry] : index().items()) {
    SCOPED_TRACE(name);
    const Json config = config_of(entry);
    const auto architecture = config["architectures"][0].get<std::string>();
    const bool exists = find_family(architecture) != nullptr;
    // Those have a reader and a test of their own.
    if (std::ranges::find(architectures(), architecture, &Architecture::name) !=
        architectures().end())
      continue;
    if (exists && entry["expect"]["status"] == "supported") {
      expect_resolved(read_decoder_config(folder() / entry["file"].get<std::string>()), entry);
      ++resolved;
    } else {
      expect_refused(config, name);
      ++refused;
    }
  }
  EXPECT_EQ(resolved, 14);
  EXPECT_EQ(refused, 17);
}

// The flags alone, under an architecture that is read: still no silent half of the model.
TEST(ConfigsFolder, SupportableFlagsAreRefusedByNameUnderLlama) {
  int flags = 0;
  for (const auto& [name, entry] : index().items()) {
    if (entry["expect"]["status"] != "supportable") continue;
    Json config = config_of(entry);
    config["architectures"] = {"LlamaForCausalLM"};
    try {
      read_decoder_config(config, name);
      ADD_FAILURE() << name << " was read";
    } catch (const Error& error) {
      for (const Json& flag : entry["expect"]["flags"]) {
        EXPECT_NE(std::string(error.what()).find(flag.get<std::string>()), std::string::npos)
            << error.what();
        ++flags;
      }
    }
  }
  EXPECT_EQ(flags, 5);
}

// Frequencies do not wait for a family: yarn, dynamic and linear of models that are refused.
TEST(ConfigsFolder, RopeOfEveryFileWithASupportedType) {
  int read = 0;
  for (const auto& [name, entry] : index().items()) {
    SCOPED_TRACE(name);
    const Json& want = entry["rope"];
    if (want.is_null() || want["type"] == "longrope") continue;
    Json config = config_of(entry);
    const Json& via = entry["expect"].contains("via") ? entry["expect"]["via"] : Json("");
    Json text = via == "" ? config : config[via.get<std::string>()];
    if (text.contains("rope_parameters")) text["rope_parameters"].erase("llama_4_scaling_beta");
    const Json& context = entry["resolved"]["context"];
    const int64_t length = context.is_null() ? 2048 : context.get<int64_t>();
    expect_rope(read_rope_config(JsonFields(text, name), want["dim"].get<int64_t>(),
                                 want["theta"].get<double>(), length),
                want, length);
    ++read;
  }
  EXPECT_EQ(read, 30);
}

}  // namespace
}  // namespace larder
