// config.json of the three families: defaults, and null against absent.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "larder/models/sizes.h"
#include "tests/models/small_config.h"

namespace larder {
namespace {

using namespace small_config;

TEST(Config, LlamaDefaultsOfAbsentKeys) {
  const auto config = read(kLlama);
  EXPECT_EQ(config.architecture, kLlama);
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_EQ(config.rope.dim, 8);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.hidden_act, Activation::kSilu);
  EXPECT_EQ(config.layer_types, layers({0, 0, 0, 0}));
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_DOUBLE_EQ(config.attention_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(config.attn_logit_softcapping, 0);
  EXPECT_EQ(config.final_logit_softcapping, 0);
  EXPECT_EQ(config.embedding_multiplier, 1);
  EXPECT_EQ(config.norm_weight_offset, 0);
  EXPECT_FALSE(config.post_norms);
  EXPECT_FALSE(config.dtype);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_FALSE(config.pad_token_id);
}

TEST(Config, MistralDefaultsOfAbsentKeys) {
  const auto config = read(kMistral);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.sliding_window, 4096);
  EXPECT_EQ(config.layer_types, layers({1, 1, 1, 1}));
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.head_dim, 8);
}

TEST(Config, Gemma2DefaultsOfAbsentKeys) {
  const auto config = read(kGemma2);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.sliding_window, 4096);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.hidden_act, Activation::kGeluTanh);
  EXPECT_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.attn_logit_softcapping, 50);
  EXPECT_EQ(config.final_logit_softcapping, 30);
  EXPECT_EQ(config.max_position_embeddings, 8192);
  EXPECT_EQ(config.embedding_multiplier, 8);
  EXPECT_EQ(config.norm_weight_offset, 1);
  EXPECT_TRUE(config.post_norms);
  EXPECT_EQ(config.bos_token_id, 2);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{1});
  EXPECT_EQ(config.pad_token_id, 0);
}

TEST(Case21, KeyHeadsDivideQueryHeadsAndAreStoredUnexpanded) {
  const auto config = read(kLlama, R"({"hidden_size": 48, "num_attention_heads": 6,
                                      "num_key_value_heads": 2})");
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(kv_bytes_per_token_per_layer(config, DType::kF32), 2 * 2 * 8 * 4);
  EXPECT_EQ(kv_bytes_per_token(config, DType::kBF16), 4 * 2 * 2 * 8 * 2);
  EXPECT_EQ(read(kLlama, R"({"num_key_value_heads": 1})").num_key_value_heads, 1);
  EXPECT_EQ(read(kLlama, R"({"num_key_value_heads": null})").num_key_value_heads, 8);
  const std::string line = refusal(
      with(kLlama, R"({"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 2})"));
  EXPECT_NE(line.find("num_attention_heads 7"), std::string::npos) << line;
  EXPECT_NE(line.find("num_key_value_heads 2"), std::string::npos) << line;
}

TEST(Case22, Gemma2ScaleCapsAndLayerPattern) {
  const auto config = read(kGemma2, R"({"query_pre_attn_scalar": 256, "head_dim": 8,
                                       "sliding_window": 4})");
  EXPECT_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.layer_types, layers({1, 0, 1, 0}));
  EXPECT_EQ(config.sliding_window, 4);
  const auto off =
      read(kGemma2, R"({"attn_logit_softcapping": null, "final_logit_softcapping": null})");
  EXPECT_EQ(off.attn_logit_softcapping, 0);
  EXPECT_EQ(off.final_logit_softcapping, 0);
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    for (const char* value : {"0", "0.0", "-50"}) {
      const auto line = refusal(with(kGemma2, str("{\"", cap, "\": ", value, "}")));
      EXPECT_NE(line.find(cap), std::string::npos) << line;
    }
  }
}

TEST(Case36, NullHeadDimAndKeyHeadsAreDerivedInEveryFamily) {
  for (const char* family : {kLlama, kMistral, kGemma2}) {
    const auto config = read(family, R"({"head_dim": null, "num_key_value_heads": null})");
    EXPECT_EQ(config.head_dim, 8) << family;
    EXPECT_EQ(config.num_key_value_heads, 8) << family;
  }
}

TEST(Case36, ExplicitHeadDimWinsOverTheQuotient) {
  const auto config = read(kLlama, R"({"hidden_size": 16, "num_attention_heads": 6,
                                      "num_key_value_heads": 2, "head_dim": 8})");
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.num_attention_heads * config.head_dim, 48);
  EXPECT_DOUBLE_EQ(config.attention_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(config.rope.dim, 8);
}

TEST(Case36, WindowNullIsOffInEveryFamily) {
  for (const char* family : {kLlama, kMistral, kGemma2}) {
    const auto config = read(family, R"({"sliding_window": null})");
    EXPECT_EQ(config.sliding_window, 0) << family;
    EXPECT_EQ(config.layer_types, layers({0, 0, 0, 0})) << family;
  }
  const auto unused = read(kMistral, R"({"sliding_window": 16, "use_sliding_window": false})");
  EXPECT_EQ(unused.sliding_window, 0);
  EXPECT_EQ(unused.layer_types, layers({0, 0, 0, 0}));
}

TEST(Case36, LayerListWinsOverTheWindow) {
  const std::string full =
      R"("layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"])";
  const std::string mixed =
      R"("layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"])";
  for (const char* family : {kLlama, kMistral, kGemma2}) {
    const auto all_full = read(family, R"({"sliding_window": 16, )" + full + "}");
    EXPECT_EQ(all_full.sliding_window, 0) << family;
    EXPECT_EQ(all_full.layer_types, layers({0, 0, 0, 0})) << family;
    const auto one = read(family, R"({"sliding_window": 16, )" + mixed + "}");
    EXPECT_EQ(one.sliding_window, 16) << family;
    EXPECT_EQ(one.layer_types, layers({0, 1, 0, 0})) << family;
    EXPECT_EQ(read(family, R"({"sliding_window": 16, "layer_types": null})").layer_types,
              read(family, R"({"sliding_window": 16})").layer_types);
  }
  EXPECT_EQ(read(kLlama, R"({"sliding_window": 16})").sliding_window, 0);
}

TEST(Case36, WindowLargerThanAnyLengthIsTaken) {
  EXPECT_EQ(read(kMistral, R"({"sliding_window": 1000000000000})").sliding_window, 1000000000000);
}

TEST(Case36, TokenIdsAbsentNullAndZero) {
  const auto null = read(kLlama, R"({"bos_token_id": null, "eos_token_id": null,
                                    "pad_token_id": null})");
  EXPECT_FALSE(null.bos_token_id);
  EXPECT_TRUE(null.eos_token_ids.empty());
  const auto zero = read(kLlama, R"({"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0})");
  EXPECT_EQ(zero.bos_token_id, 0);
  EXPECT_EQ(zero.eos_token_ids, std::vector<int64_t>{0});
  EXPECT_EQ(zero.pad_token_id, 0);
  const auto list = read(kLlama, R"({"eos_token_id": [1, 3], "pad_token_id": -1})");
  EXPECT_EQ(list.eos_token_ids, (std::vector<int64_t>{1, 3}));
  EXPECT_FALSE(list.pad_token_id);
}

TEST(Case36, NullSwitchesAreOff) {
  const auto config = read(kGemma2, R"({"attention_bias": null, "tie_word_embeddings": null})");
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(read(kLlama, R"({"attention_bias": true, "mlp_bias": true})").attention_bias);
  EXPECT_EQ(read(kLlama, R"({"rope_scaling": null})").rope.type, RopeType::kDefault);
}

TEST(Case36, WholeNumbersMayBeWrittenAsFloats) {
  const auto config = read(kLlama, R"({"vocab_size": 1e4, "hidden_size": 64.0,
                                      "rope_theta": 1000000, "unknown_key": {"a": []}})");
  EXPECT_EQ(config.vocab_size, 10000);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.rope.theta, 1e6);
}

TEST(Case35, TieFollowsTheFamilyWhereAbsent) {
  EXPECT_FALSE(read(kLlama).tie_word_embeddings);
  EXPECT_TRUE(read(kGemma2).tie_word_embeddings);
  EXPECT_TRUE(read(kLlama, R"({"tie_word_embeddings": true})").tie_word_embeddings);
  EXPECT_FALSE(read(kGemma2, R"({"tie_word_embeddings": false})").tie_word_embeddings);
}

TEST(Config, ActivationsOfEachFamilysOwnKey) {
  EXPECT_EQ(read(kLlama, R"({"hidden_act": "gelu"})").hidden_act, Activation::kGelu);
  EXPECT_EQ(read(kMistral, R"({"hidden_act": "gelu_pytorch_tanh"})").hidden_act,
            Activation::kGeluTanh);
  EXPECT_EQ(read(kGemma2, R"({"hidden_act": "silu"})").hidden_act, Activation::kGeluTanh);
  EXPECT_EQ(read(kGemma2, R"({"hidden_activation": null})").hidden_act, Activation::kGeluTanh);
  EXPECT_EQ(read(kGemma2, R"({"hidden_activation": "silu"})").hidden_act, Activation::kSilu);
}

TEST(Config, DtypeUnderEitherNameAndTheNewerWins) {
  EXPECT_EQ(read(kLlama, R"({"torch_dtype": "bfloat16"})").dtype, DType::kBF16);
  EXPECT_EQ(read(kLlama, R"({"dtype": "float16"})").dtype, DType::kF16);
  EXPECT_EQ(read(kLlama, R"({"dtype": "float32", "torch_dtype": "float16"})").dtype, DType::kF32);
  EXPECT_FALSE(read(kLlama, R"({"dtype": null, "torch_dtype": "auto"})").dtype);
}

TEST(Config, ArchitectureIsTheFirstSupportedOrModelType) {
  Json config = base(kLlama);
  config["architectures"] = {"FooModel", "MistralForCausalLM", "LlamaForCausalLM"};
  EXPECT_EQ(read_decoder_config(config, "config.json").architecture, kMistral);
  config["architectures"] = nullptr;
  config["model_type"] = "gemma2";
  EXPECT_EQ(read_decoder_config(config, "config.json").architecture, kGemma2);
  config.erase("architectures");
  EXPECT_EQ(read_decoder_config(config, "config.json").architecture, kGemma2);
}

TEST(Config, UnsupportedArchitectureNamesWhatWasFoundAndWhatIsSupported) {
  Json config = base("GPT2LMHeadModel");
  config["model_type"] = "gpt2";
  try {
    read_decoder_config(config, "m/config.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(
        std::string(error.what()),
        str("m/config.json: architecture \"GPT2LMHeadModel\", model_type \"gpt2\" is not supported "
            "(supported: ",
            supported_architectures(), ")"));
  }
  const std::string all = supported_architectures();
  for (const char* name :
       {kLlama, kMistral, kGemma2, "MambaForCausalLM", "RecurrentGemmaForCausalLM"})
    EXPECT_NE(all.find(name), std::string::npos) << name;
}

TEST(Config, AllFaultsAreInOneLine) {
  const auto line = refusal(with(kGemma2, R"({
      "vocab_size": 0, "num_attention_heads": 7, "num_key_value_heads": 2, "head_dim": 9,
      "hidden_activation": "relu", "rms_norm_eps": "small", "attn_logit_softcapping": 0,
      "rope_scaling": {"rope_type": "spiral"}, "layer_types": ["full_attention"],
      "quantization_config": {"quant_method": "gptq"}, "dtype": "int4"})"));
  for (const char* part :
       {"vocab_size", "num_attention_heads 7", "num_key_value_heads 2", "head_dim, found 9",
        "\"relu\"", "rms_norm_eps must be a number", "attn_logit_softcapping", "\"spiral\"",
        "default, linear, dynamic, llama3, yarn", "layer_types has 1 entries",
        "quantization_config", "\"int4\""})
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find("config.json", 1), std::string::npos) << line;
}

TEST(Config, ValuesThatChangeNothingAreNoReasonToRefuse) {
  EXPECT_NO_THROW(read(kLlama, R"({"embedding_multiplier": 1, "residual_multiplier": 1.0,
      "logits_scaling": null, "no_rope_layers": [1, 1, 1, 1], "rope_interleaved": false,
      "partial_rotary_factor": 1.0, "quantization_config": null, "num_local_experts": 0,
      "attn_logit_softcapping": null, "is_encoder_decoder": false})"));
}

TEST(Families, NamesOfWeightsFollowTheFile) {
  const Family* llama = find_family(kLlama);
  ASSERT_NE(llama, nullptr);
  const auto names = llama->layer_names(3);
  EXPECT_EQ(names.input_norm, "model.layers.3.input_layernorm");
  EXPECT_EQ(names.q, "model.layers.3.self_attn.q_proj");
  EXPECT_EQ(names.mlp_norm, "model.layers.3.post_attention_layernorm");
  EXPECT_EQ(names.down, "model.layers.3.mlp.down_proj");
  EXPECT_EQ(names.post_attention_norm, "");
  EXPECT_EQ(names.post_mlp_norm, "");
  EXPECT_EQ(llama->model_names().embed, "model.embed_tokens");
  EXPECT_EQ(llama->model_names().final_norm, "model.norm");
  EXPECT_EQ(llama->model_names().lm_head, "lm_head");

  const auto gemma = find_family(kGemma2)->layer_names(0);
  EXPECT_EQ(gemma.post_attention_norm, "model.layers.0.post_attention_layernorm");
  EXPECT_EQ(gemma.mlp_norm, "model.layers.0.pre_feedforward_layernorm");
  EXPECT_EQ(gemma.post_mlp_norm, "model.layers.0.post_feedforward_layernorm");
}

TEST(Families, EveryEntryIsFoundByBothOfItsNames) {
  EXPECT_GE(families().size(), 3u);
  for (const Family* family : families()) {
    EXPECT_EQ(find_family(family->architecture), family);
    EXPECT_EQ(find_family_of_type(family->model_type), family);
  }
  EXPECT_EQ(find_family("GPT2LMHeadModel"), nullptr);
}

}  // namespace
}  // namespace larder
