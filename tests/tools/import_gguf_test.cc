#include "tools/import_gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "larder/base/json.h"
#include "larder/tensor/safetensors.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace larder::tools {
namespace {

using test::GgufBuilder;
using test::TempFolder;
using test::tiny_llama;

bool never() { return false; }

// A converted model in a folder of its own.
class Imported {
 public:
  explicit Imported(const GgufBuilder& gguf) {
    error = test::error_text([&] {
      result = import_gguf(folder_.write("in.gguf", gguf.build()), folder_ / "out", never);
    });
  }
  Json json(const char* name) const {
    return parse_json(read_file(folder_ / (std::string("out/") + name)), name);
  }
  std::filesystem::path out() const { return folder_ / "out"; }
  // Files and folders beside the input.
  int64_t left_behind() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {}) - 1;
  }

  std::string error;
  ImportResult result;

 private:
  TempFolder folder_;
};

void expect_refused(const GgufBuilder& gguf, const char* expected) {
  const Imported imported(gguf);
  EXPECT_NE(imported.error.find(expected), std::string::npos)
      << expected << " | " << imported.error;
  EXPECT_EQ(imported.left_behind(), 0) << expected;
}

float value(const StoredTensor& tensor, size_t index) {
  uint16_t bits;
  std::memcpy(&bits, tensor.data + 2 * index, 2);
  return bf16_to_f32(bits);
}

TEST(ImportGguf, WritesEveryWeightUnderItsHuggingFaceName) {
  const Imported imported(tiny_llama());
  ASSERT_EQ(imported.error, "");
  EXPECT_EQ(imported.result.tensors, 20u);
  const SafetensorsFolder folder(imported.out());
  ASSERT_EQ(folder.tensors().size(), 20u);
  const std::pair<const char*, std::vector<int64_t>> expected[] = {
      {"model.embed_tokens.weight", {8, 32}},
      {"model.layers.0.input_layernorm.weight", {32}},
      {"model.layers.0.self_attn.q_proj.weight", {32, 32}},
      {"model.layers.0.self_attn.k_proj.weight", {16, 32}},
      {"model.layers.0.self_attn.v_proj.weight", {16, 32}},
      {"model.layers.0.self_attn.o_proj.weight", {32, 32}},
      {"model.layers.0.post_attention_layernorm.weight", {32}},
      {"model.layers.0.mlp.gate_proj.weight", {64, 32}},
      {"model.layers.0.mlp.up_proj.weight", {64, 32}},
      {"model.layers.0.mlp.down_proj.weight", {32, 64}}};
  for (size_t i = 0; i < std::size(expected); ++i) {
    const StoredTensor* tensor = folder.find(expected[i].first);
    ASSERT_NE(tensor, nullptr) << expected[i].first;
    EXPECT_EQ(tensor->dtype, DType::kBF16);
    EXPECT_EQ(tensor->shape, expected[i].second);
    EXPECT_EQ(value(*tensor, 0), static_cast<float>(i)) << expected[i].first;
  }
  EXPECT_EQ(value(*folder.find("model.layers.1.input_layernorm.weight"), 0), 10);
  EXPECT_EQ(value(*folder.find("model.norm.weight"), 0), 19);
  // Row 1 of a head of 8 channels was row 2; row 4 (the second half's first) was row 1.
  const StoredTensor& k = *folder.find("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(value(k, 1 * 32), 3 + 2 * 0.5f);
  EXPECT_EQ(value(k, 4 * 32), 3 + 1 * 0.5f);
  const StoredTensor& v = *folder.find("model.layers.0.self_attn.v_proj.weight");
  EXPECT_EQ(value(v, 1 * 32), 4 + 1 * 0.5f);
}

TEST(ImportGguf, WritesTheConfig) {
  const Imported imported(tiny_llama());
  const Json config = imported.json("config.json");
  EXPECT_EQ(config["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(config["num_hidden_layers"], 2);
  EXPECT_EQ(config["hidden_size"], 32);
  EXPECT_EQ(config["intermediate_size"], 64);
  EXPECT_EQ(config["num_attention_heads"], 4);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["head_dim"], 8);
  EXPECT_EQ(config["vocab_size"], 8);
  EXPECT_EQ(config["max_position_embeddings"], 128);
  EXPECT_EQ(config["rms_norm_eps"].dump(), "1e-05") << "the shortest text of the f32";
  EXPECT_EQ(config["rope_theta"], 10000.5);
  EXPECT_TRUE(config["rope_scaling"].is_null());
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["attention_bias"], false);
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_EQ(config["eos_token_id"], 0);
  EXPECT_FALSE(config.contains("pad_token_id"));
  EXPECT_EQ(imported.json("generation_config.json")["bos_token_id"], 0);
}

TEST(ImportGguf, WritesTheTokenizer) {
  const Imported imported(tiny_llama());
  const Json tokenizer = imported.json("tokenizer.json");
  EXPECT_EQ(tokenizer["model"]["type"], "BPE");
  EXPECT_EQ(tokenizer["model"]["vocab"]["ab"], 3);
  EXPECT_EQ(tokenizer["model"]["vocab"].size(), 8u);
  EXPECT_EQ(tokenizer["model"]["merges"], Json::array({"a b", "\xc4\xa0 a"}));
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], false);
  const Json& pre = tokenizer["pre_tokenizer"]["pretokenizers"];
  EXPECT_EQ(pre[0]["type"], "Digits");
  EXPECT_EQ(pre[0]["individual_digits"], true);
  EXPECT_EQ(pre[1]["type"], "ByteLevel");
  EXPECT_EQ(pre[1]["add_prefix_space"], false);
  EXPECT_EQ(pre[1]["use_regex"], true);
  EXPECT_TRUE(tokenizer["post_processor"].is_null());
  EXPECT_EQ(tokenizer["decoder"]["type"], "ByteLevel");
  const Json& added = tokenizer["added_tokens"];
  ASSERT_EQ(added.size(), 2u);
  EXPECT_EQ(added[0]["content"], "<|end|>");
  EXPECT_EQ(added[0]["special"], true);
  EXPECT_EQ(added[1]["id"], 7);
  EXPECT_EQ(added[1]["special"], false);
  const Json config = imported.json("tokenizer_config.json");
  EXPECT_EQ(config["chat_template"], "{{ messages }}\n");
  EXPECT_EQ(config["bos_token"], "<|end|>");
}

TEST(ImportGguf, AddsABosTokenWhereTheMetadataSayItIsAdded) {
  GgufBuilder gguf = tiny_llama();
  gguf.flag("tokenizer.ggml.add_bos_token", true);
  const Imported imported(gguf);
  const Json post = imported.json("tokenizer.json")["post_processor"];
  EXPECT_EQ(post["type"], "TemplateProcessing");
  EXPECT_EQ(post["single"][0]["SpecialToken"]["id"], "<|end|>");
  EXPECT_EQ(post["single"][1]["Sequence"]["id"], "A");
  EXPECT_EQ(post["pair"].size(), 4u);
  EXPECT_EQ(post["special_tokens"]["<|end|>"]["ids"], Json::array({0}));
}

TEST(ImportGguf, Llama3SplitsByItsPatternAndIgnoresMerges) {
  GgufBuilder gguf = tiny_llama();
  gguf.remove("tokenizer.ggml.pre");
  gguf.text("tokenizer.ggml.pre", "llama-bpe");
  gguf.number("tokenizer.ggml.eot_token_id", 7);
  const Imported imported(gguf);
  const Json tokenizer = imported.json("tokenizer.json");
  EXPECT_EQ(tokenizer["pre_tokenizer"]["pretokenizers"][0]["type"], "Split");
  EXPECT_EQ(tokenizer["pre_tokenizer"]["pretokenizers"][1]["use_regex"], false);
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], true);
  EXPECT_EQ(tokenizer["post_processor"]["type"], "TemplateProcessing");
  EXPECT_EQ(imported.json("generation_config.json")["eos_token_id"], Json::array({0, 7}));
}

GgufBuilder sentencepiece() {
  GgufBuilder gguf = tiny_llama();
  for (const char* key : {"model", "pre", "tokens", "token_type", "merges"})
    gguf.remove(std::string("tokenizer.ggml.") + key);
  gguf.text("tokenizer.ggml.model", "llama");
  gguf.texts("tokenizer.ggml.tokens", {"<unk>", "<0x41>", "a", "b", "ab", "aba", "ba", "<s>"});
  gguf.numbers("tokenizer.ggml.token_type", {2, 6, 1, 1, 1, 1, 1, 3});
  gguf.reals("tokenizer.ggml.scores", {0, 0, -10, -11, -3, -2, -1, 0});
  gguf.number("tokenizer.ggml.unknown_token_id", 0);
  return gguf;
}

TEST(ImportGguf, SentencePieceMergesAreDerivedFromScores) {
  const Imported imported(sentencepiece());
  ASSERT_EQ(imported.error, "");
  const Json tokenizer = imported.json("tokenizer.json");
  EXPECT_EQ(tokenizer["model"]["merges"], Json::array({"b a", "a ba", "ab a", "a b"}))
      << "best score first; cuts of one piece by their first part's id";
  EXPECT_EQ(tokenizer["model"]["byte_fallback"], true);
  EXPECT_EQ(tokenizer["model"]["unk_token"], "<unk>");
  EXPECT_TRUE(tokenizer["pre_tokenizer"].is_null());
  EXPECT_EQ(tokenizer["normalizer"]["normalizers"][0]["type"], "Prepend");
  EXPECT_EQ(tokenizer["decoder"]["decoders"].back()["type"], "Strip");
  EXPECT_EQ(tokenizer["post_processor"]["type"], "TemplateProcessing") << "a bos by default";
}

TEST(ImportGguf, UntiedHeadsAndBiasesAreSeen) {
  GgufBuilder gguf = tiny_llama();
  gguf.f32("output.weight", {8, 32}, std::vector<float>(256, 2));
  for (const char* layer : {"blk.0.", "blk.1."}) {
    for (const auto& [name, size] : {std::pair("attn_q", 32), std::pair("attn_k", 16),
                                     std::pair("attn_v", 16), std::pair("attn_output", 32)}) {
      gguf.f32(str(layer, name, ".bias"), {static_cast<uint64_t>(size)},
               std::vector<float>(static_cast<size_t>(size), 1));
    }
  }
  const Imported imported(gguf);
  ASSERT_EQ(imported.error, "");
  const Json config = imported.json("config.json");
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["attention_bias"], true);
  const SafetensorsFolder folder(imported.out());
  EXPECT_NE(folder.find("lm_head.weight"), nullptr);
  EXPECT_NE(folder.find("model.layers.1.self_attn.o_proj.bias"), nullptr);
  GgufBuilder one = tiny_llama();
  one.f32("blk.0.attn_q.bias", {32}, std::vector<float>(32, 1));
  expect_refused(one, "1 of 8 attention biases are there");
}

TEST(ImportGguf, RopeScalingIsWrittenOrRefused) {
  GgufBuilder yarn = tiny_llama();
  yarn.text("llama.rope.scaling.type", "yarn");
  yarn.real("llama.rope.scaling.factor", 4);
  yarn.number("llama.rope.scaling.original_context_length", 32);
  const Json scaling = Imported(yarn).json("config.json")["rope_scaling"];
  EXPECT_EQ(scaling["rope_type"], "yarn");
  EXPECT_EQ(scaling["factor"], 4);
  EXPECT_EQ(scaling["original_max_position_embeddings"], 32);
  yarn.remove("llama.rope.scaling.original_context_length");
  yarn.number("llama.rope.scaling.original_context_length", 0);
  expect_refused(yarn, "original_context_length\" is 0");
  GgufBuilder linear = tiny_llama();
  linear.text("llama.rope.scaling.type", "linear");
  linear.real("llama.rope.scaling.factor", 2.5f);
  EXPECT_EQ(Imported(linear).json("config.json")["rope_scaling"]["factor"], 2.5);
  GgufBuilder longrope = tiny_llama();
  longrope.text("llama.rope.scaling.type", "longrope");
  expect_refused(longrope, "rope scaling of type \"longrope\" is not supported");
}

TEST(ImportGguf, Llama3RopeFactorsAreRecoveredOrRefused) {
  // Waves of head_dim 8 at base 500000: 6.3, 167, 4443 and 118141 positions long; factor 8 of
  // original 8192 leaves the first two, stretches the last, and puts the third between
  // (8192 / 4 < 4443 < 8192): 1 / ((1 - s) / 8 + s) with s = (8192 / 4442.88 - 1) / 3 = 0.281278.
  const auto with = [](const std::vector<float>& factors) {
    GgufBuilder gguf = tiny_llama();
    gguf.remove("llama.rope.freq_base");
    gguf.real("llama.rope.freq_base", 500000);
    gguf.f32("rope_freqs.weight", {factors.size()}, factors);
    return gguf;
  };
  const Imported imported(with({1, 1, 2.69479f, 8}));
  ASSERT_EQ(imported.error, "");
  const Json scaling = imported.json("config.json")["rope_scaling"];
  EXPECT_EQ(scaling["rope_type"], "llama3");
  EXPECT_EQ(scaling["factor"], 8);
  EXPECT_EQ(scaling["original_max_position_embeddings"], 8192);
  expect_refused(with({1, 1, 2, 8}), "rope_freqs.weight is not the llama3 scaling");
  expect_refused(with({1, 1, 8}), "must be 4 numbers");
}

TEST(ImportGguf, WhatCannotBeMappedIsRefusedAndNothingIsWritten) {
  const auto changed = [](const char* key, auto set) {
    GgufBuilder gguf = tiny_llama();
    gguf.remove(key);
    set(gguf);
    return gguf;
  };
  const auto number = [&](const char* key, uint32_t value) {
    return changed(key, [&](GgufBuilder& b) { b.number(key, value); });
  };
  const auto text = [&](const char* key, const char* value) {
    return changed(key, [&](GgufBuilder& b) { b.text(key, value); });
  };
  const auto without = [&](const char* key) { return changed(key, [](GgufBuilder&) {}); };
  expect_refused(text("general.architecture", "gemma"), "the architecture \"gemma\"");
  expect_refused(without("general.architecture"), "the architecture \"\"");
  expect_refused(without("llama.block_count"), "\"llama.block_count\" is missing");
  expect_refused(number("llama.block_count", 0), "\"llama.block_count\" is 0");
  expect_refused(number("llama.block_count", 3), "blk.2.attn_norm.weight is missing");
  expect_refused(number("llama.block_count", 1), "\"blk.1.attn_norm.weight\" is unknown");
  expect_refused(number("llama.block_count", 0x7FFFFFFF), "layers, but only");
  expect_refused(number("llama.embedding_length", 64), "has shape [8, 32] and not [8, 64]");
  expect_refused(number("llama.attention.head_count_kv", 3), "4 heads cannot share 3 key heads");
  expect_refused(number("llama.rope.dimension_count", 4), "rope on 4 of 8 channels");
  expect_refused(number("llama.attention.key_length", 7), "heads of 7 channels are odd");
  expect_refused(number("llama.expert_count", 8), "mixture of experts");
  expect_refused(number("llama.attention.strange", 8),
                 "cannot be converted: \"llama.attention.strange\"");
  expect_refused(text("llama.context_length", "x"), "\"llama.context_length\" must be a whole");
  expect_refused(number("tokenizer.ggml.eos_token_id", 8), "is 8 of 8 tokens");
  expect_refused(text("tokenizer.ggml.model", "bert"), "the tokenizer \"bert\" is not supported");
  expect_refused(text("tokenizer.ggml.pre", "qwen2"), "the pre-tokenizer \"qwen2\"");
  expect_refused(without("tokenizer.ggml.pre"), "\"tokenizer.ggml.pre\" is missing");
  expect_refused(without("tokenizer.ggml.tokens"), "\"tokenizer.ggml.tokens\" is missing");
  expect_refused(without("tokenizer.ggml.merges"), "\"tokenizer.ggml.merges\" is missing");
  expect_refused(text("tokenizer.chat_template", "\xff"), "is not valid UTF-8");
  const auto texts = [&](const char* key, const std::vector<std::string>& values) {
    return changed(key, [&](GgufBuilder& b) { b.texts(key, values); });
  };
  expect_refused(texts("tokenizer.ggml.merges", {"a z"}), "needs the token \"z\"");
  expect_refused(texts("tokenizer.ggml.merges", {"b a"}), "needs the token \"ba\"");
  expect_refused(texts("tokenizer.ggml.merges", {"ab"}), "is not two tokens");
  expect_refused(texts("tokenizer.ggml.tokens", {"a", "b", "a"}), "stands twice");
  expect_refused(texts("tokenizer.ggml.tokens", std::vector<std::string>(9, "x")),
                 "9 tokens for an embedding of 8 rows");
  GgufBuilder no_scores = sentencepiece();
  no_scores.remove("tokenizer.ggml.scores");
  expect_refused(no_scores, "merges cannot be derived");
}

TEST(ImportGguf, AFolderThatHoldsSomethingIsLeftAlone) {
  const TempFolder folder;
  const auto gguf = folder.write("in.gguf", tiny_llama().build());
  folder.write("out/precious", "x");
  const std::string text = test::error_text([&] { import_gguf(gguf, folder / "out", never); });
  EXPECT_NE(text.find("exists and is not an empty folder"), std::string::npos);
  EXPECT_EQ(read_file(folder / "out/precious"), "x");
  std::filesystem::create_directory(folder / "empty");
  EXPECT_EQ(import_gguf(gguf, folder.path() / "empty/", never).tensors, 20u);
  EXPECT_TRUE(std::filesystem::exists(folder / "empty/config.json"));
  EXPECT_NE(test::error_text([&] {
              import_gguf(gguf, folder / "out/precious/x", never);
            }).find("cannot make the folder"),
            std::string::npos);
}

TEST(ImportGguf, AStoppedImportLeavesNothing) {
  const TempFolder folder;
  const auto gguf = folder.write("in.gguf", tiny_llama().build());
  int asked = 0;
  EXPECT_EQ(import_gguf(gguf, folder / "out", [&] { return ++asked == 3; }).tensors, 0u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace larder::tools
