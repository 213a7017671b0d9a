// Configs that are refused, each with one line that names the field.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "larder/models/sizes.h"
#include "tests/models/small_config.h"

namespace larder {
namespace {

using namespace small_config;

struct Malformed {
  const char* family;
  const char* changes;
  const char* named;
};

const Malformed kMalformed[] = {
    {kLlama, R"({"vocab_size": null})", "vocab_size is null"},
    {kLlama, R"({"vocab_size": "32"})", "vocab_size must be a whole number, found \"32\""},
    {kLlama, R"({"vocab_size": 32.5})", "found 32.5"},
    {kLlama, R"({"vocab_size": true})", "vocab_size"},
    {kLlama, R"({"vocab_size": 4294967296})", "vocab_size must be between 1 and"},
    {kLlama, R"({"vocab_size": 18446744073709551615})", "vocab_size"},
    {kLlama, R"({"hidden_size": -64})", "hidden_size must be between 1 and"},
    {kLlama, R"({"hidden_size": 0})", "hidden_size"},
    {kLlama, R"({"hidden_size": [64]})", "hidden_size must be a whole number, found a list"},
    {kLlama, R"({"hidden_size": 65})", "hidden_size 65 is not a multiple of num_attention_heads 8"},
    {kLlama, R"({"hidden_size": 72})", "even head_dim, found 9"},
    {kLlama, R"({"intermediate_size": {}})", "intermediate_size"},
    {kLlama, R"({"num_hidden_layers": 0})", "num_hidden_layers"},
    {kLlama, R"({"num_hidden_layers": 1000000000000})", "num_hidden_layers"},
    {kLlama, R"({"num_attention_heads": 2147483647, "head_dim": 65536, "hidden_size": 2147483647,
                 "num_key_value_heads": 1})",
     "more than 64 bits can count"},
    {kLlama, R"({"vocab_size": 2147483647, "hidden_size": 2147483640})", "vocab_size 2147483647 x"},
    {kLlama, R"({"num_key_value_heads": 3})", "num_key_value_heads 3"},
    {kLlama, R"({"num_key_value_heads": 16})", "num_key_value_heads 16"},
    {kLlama, R"({"num_key_value_heads": 0})", "num_key_value_heads"},
    {kLlama, R"({"num_key_value_heads": -8})", "num_key_value_heads"},
    {kLlama, R"({"head_dim": 7})", "head_dim, found 7"},
    {kLlama, R"({"head_dim": 0})", "head_dim"},
    {kLlama, R"({"head_dim": 1000000000})", "head_dim"},
    {kLlama, R"({"max_position_embeddings": -1})", "max_position_embeddings"},
    {kLlama, R"({"max_position_embeddings": null})", "max_position_embeddings"},
    {kLlama, R"({"rms_norm_eps": 0})", "rms_norm_eps"},
    {kLlama, R"({"rms_norm_eps": null})", "rms_norm_eps"},
    {kLlama, R"({"tie_word_embeddings": "yes"})", "tie_word_embeddings must be true or false"},
    {kLlama, R"({"tie_word_embeddings": 1})", "tie_word_embeddings"},
    {kLlama, R"({"attention_bias": 0})", "attention_bias"},
    {kLlama, R"({"hidden_act": "swiglu"})", "hidden_act \"swiglu\""},
    {kLlama, R"({"hidden_act": null})", "hidden_act"},
    {kLlama, R"({"hidden_act": 3})", "hidden_act must be a string"},
    {kLlama, R"({"dtype": "int8"})", "dtype \"int8\""},
    {kLlama, R"({"torch_dtype": 16})", "torch_dtype must be a string"},
    {kLlama, R"({"eos_token_id": "</s>"})", "eos_token_id"},
    {kLlama, R"({"eos_token_id": [1, null]})", "eos_token_id"},
    {kLlama, R"({"eos_token_id": [1, -7]})", "eos_token_id"},
    {kLlama, R"({"bos_token_id": -2})", "bos_token_id"},
    {kLlama, R"({"bos_token_id": [1]})", "bos_token_id"},
    {kLlama, R"({"rope_theta": null})", "rope_theta"},
    {kLlama, R"({"rope_theta": -10000})", "rope_theta"},
    {kLlama, R"({"rope_scaling": 8})", "rope_scaling must be an object"},
    {kLlama, R"({"rope_scaling": {"type": "longrope"}})", "rope_type \"longrope\""},
    {kLlama, R"({"rope_scaling": {"type": "linear"}})", "factor is missing"},
    {kLlama, R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor (0.5)"},
    {kLlama, R"({"no_rope_layers": [1, 1, 1, 0]})", "no_rope_layers"},
    {kLlama, R"({"embedding_multiplier": 12.0})", "embedding_multiplier"},
    {kLlama, R"({"attention_multiplier": 0.015625})", "attention_multiplier"},
    {kLlama, R"({"residual_multiplier": 0.22})", "residual_multiplier"},
    {kLlama, R"({"logits_scaling": 8.0})", "logits_scaling"},
    {kLlama, R"({"num_local_experts": 8})", "num_local_experts"},
    {kLlama, R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping"},
    {kLlama, R"({"rope_interleaved": true})", "rope_interleaved"},
    {kLlama, R"({"quantization_config": {"quant_method": "mxfp4"}})", "quantization_config"},
    {kLlama, R"({"model_type": "mistral"})", "model_type \"mistral\" contradicts"},
    {kLlama, R"({"model_type": 3})", "model_type must be a string"},
    {kLlama, R"({"architectures": "LlamaForCausalLM"})", "architectures must be a list of strings"},
    {kLlama, R"({"architectures": []})", "neither architectures nor model_type"},
    {kLlama, R"({"architectures": ["LlamaModel"]})", "\"LlamaModel\""},
    {kMistral, R"({"sliding_window": 0})", "sliding_window"},
    {kMistral, R"({"sliding_window": -1})", "sliding_window"},
    {kMistral, R"({"sliding_window": "4096"})", "sliding_window must be a whole number"},
    {kMistral, R"({"attention_bias": true})", "attention_bias"},
    {kMistral, R"({"layer_types": "full_attention"})", "layer_types must be a list of strings"},
    {kMistral, R"({"layer_types": []})", "layer_types has 0 entries for num_hidden_layers 4"},
    {kMistral, R"({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})",
     "\"chunked_attention\""},
    {kMistral,
     R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": null})",
     "sliding_window is off"},
    {kGemma2, R"({"query_pre_attn_scalar": 0})", "query_pre_attn_scalar"},
    {kGemma2, R"({"query_pre_attn_scalar": null})", "query_pre_attn_scalar"},
    {kGemma2, R"({"hidden_activation": "relu"})", "hidden_activation \"relu\""},
    {kGemma2, R"({"mlp_bias": true})", "mlp_bias"},
};

TEST(Case36, MalformedConfigsAreRefusedByNameInOneLine) {
  for (const auto& [family, changes, named] : kMalformed) {
    const std::string line = refusal(with(family, changes));
    EXPECT_NE(line.find(named), std::string::npos) << changes << "\n" << line;
    EXPECT_TRUE(line.starts_with("config.json: ")) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

// Whatever stands under a key, the file is read or refused in one line; nothing else is thrown.
TEST(Case36, AnyValueUnderAnyKeyIsReadOrRefusedInOneLine) {
  const Json values = parse_json(
      R"([null, true, false, -1, 0, 1, 2147483648, 9223372036854775807, 18446744073709551615, 1e300,
          -1e300, 0.5, "x", "", [], [null], [1], ["x"], {}, {"type": "yarn", "factor": 1e300}])",
      "values");
  int refused = 0, taken = 0;
  for (const Family* family : families()) {
    for (const char* key : {"architectures",
                            "model_type",
                            "vocab_size",
                            "hidden_size",
                            "intermediate_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "max_position_embeddings",
                            "rms_norm_eps",
                            "rope_theta",
                            "rope_scaling",
                            "rope_parameters",
                            "sliding_window",
                            "use_sliding_window",
                            "layer_types",
                            "hidden_act",
                            "hidden_activation",
                            "attention_bias",
                            "mlp_bias",
                            "tie_word_embeddings",
                            "dtype",
                            "torch_dtype",
                            "bos_token_id",
                            "eos_token_id",
                            "pad_token_id",
                            "query_pre_attn_scalar",
                            "attn_logit_softcapping",
                            "final_logit_softcapping",
                            "quantization_config",
                            "original_max_position_embeddings",
                            "no_rope_layers"}) {
      for (const Json& value : values) {
        Json config = base(family->architecture);
        config[key] = value;
        const std::string line = refusal(config);
        EXPECT_EQ(line.find('\n'), std::string::npos) << line;
        ++(line.empty() ? taken : refused);
      }
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(taken, 200);
}

TEST(Case36, MissingSizesAreAllNamed) {
  const std::string line = refusal(Json{{"model_type", "llama"}});
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"})
    EXPECT_NE(line.find(str(key, " is missing")), std::string::npos) << line;
}

TEST(Case36, NotAnObjectIsRefused) {
  EXPECT_NE(refusal(Json::array()).find("expected a JSON object"), std::string::npos);
  EXPECT_NE(refusal(Json(3)).find("expected a JSON object"), std::string::npos);
}

}  // namespace
}  // namespace larder
