#include "larder/models/decoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

class Decoders : public ::testing::Test {
 protected:
  std::shared_ptr<const Decoder> load(const TinyModel& tiny,
                                      std::optional<DType> dtype = std::nullopt) {
    tiny.write(folder_.path());
    return Decoder::load(folder_.path(), {dtype}, tracking_);
  }
  std::vector<float> logits(const std::shared_ptr<const Decoder>& model, const Ids& ids,
                            AttentionKind attention = AttentionKind::kFused) {
    Session session(model, {"dynamic", DType::kF32, 0, attention, 1, {}}, host_);
    return all_logits(session, {ids}, 1000)[0];
  }

  TempFolder folder_;
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  const Ids ids_ = {1, 7, 30, 4, 4, 19};
};

TEST_F(Decoders, Case34_MissingAndMisshapenWeightsAreListedTogether) {
  TinyModel tiny;
  tiny.tensors.erase("model.layers.1.mlp.up_proj.weight");
  tiny.tensors.erase("model.norm.weight");
  tiny.tensors["lm_head.weight"] = TinyModel::random("x", {31, 16});
  tiny.tensors["model.layers.0.self_attn.k_proj.weight"] = TinyModel::random("x", {16, 8});
  const std::string text = error_text([&] { load(tiny); });
  EXPECT_NE(text.find("4 weights"), std::string::npos) << text;
  EXPECT_NE(text.find("\"model.layers.1.mlp.up_proj.weight\" is missing"), std::string::npos)
      << text;
  EXPECT_NE(text.find("\"model.norm.weight\" is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("\"lm_head.weight\" is [31, 16], expected [32, 16]"), std::string::npos)
      << text;
  EXPECT_NE(text.find("k_proj.weight\" is [16, 8], expected [8, 16]"), std::string::npos) << text;
}

TEST_F(Decoders, Case33_ATypeThatNoKernelReadsIsRefusedByName) {
  TinyModel tiny;
  TinyTensor& tensor = tiny.tensors["model.layers.0.mlp.up_proj.weight"];
  tensor.dtype = DType::kI16;
  tensor.bytes.resize(size_t{24} * 16 * 2);
  const std::string text = error_text([&] { load(tiny); });
  EXPECT_NE(text.find("up_proj.weight\" is i16"), std::string::npos) << text;
  EXPECT_NE(text.find("f32, f16, bf16"), std::string::npos) << text;
}

TEST_F(Decoders, Case35_ATiedHeadIsTheEmbeddingWhetherOrNotTheFileRepeatsIt) {
  Json config = TinyModel::default_config();
  config["tie_word_embeddings"] = true;
  TinyModel tiny(config);
  const auto without = load(tiny);
  const std::vector<float> expected = logits(without, ids_);
  EXPECT_EQ(without->weights().lm_head.stored.data, without->weights().embed.stored.data);
  tiny.tensors["lm_head.weight"] = tiny.tensors["model.embed_tokens.weight"];
  EXPECT_EQ(logits(load(tiny), ids_), expected);
}

TEST_F(Decoders, Case35_WithoutTheKeyAFamilysDefaultHolds) {
  Json config = TinyModel::default_config();
  config.erase("tie_word_embeddings");
  TinyModel tiny(config);
  tiny.tensors.erase("lm_head.weight");
  EXPECT_NE(error_text([&] { load(tiny); }).find("\"lm_head.weight\" is missing"),
            std::string::npos);
}

TEST_F(Decoders, Case36_AnExplicitHeadDimWins) {
  Json config = TinyModel::default_config();
  config["num_attention_heads"] = 6;
  config["head_dim"] = 8;
  const TinyModel tiny(config);
  EXPECT_EQ(tiny.tensors.at("model.layers.0.self_attn.q_proj.weight").shape,
            (std::vector<int64_t>{48, 16}));
  const std::vector<float> fused = logits(load(tiny), ids_),
                           eager = logits(load(tiny), ids_, AttentionKind::kEager);
  for (size_t i = 0; i < fused.size(); ++i) ASSERT_NEAR(fused[i], eager[i], 1e-4f);
}

TEST_F(Decoders, Case41_AnIdOutsideTheVocabularyIsRefusedBeforeAnythingChanges) {
  const auto model = load(TinyModel());
  Session session(model, {}, host_);
  for (const int32_t id : {32, -1, INT32_MAX}) {
    const std::string text = error_text([&] { all_logits(session, {{1, id}}, 10); });
    EXPECT_NE(text.find(str("token id ", id, " is outside the vocabulary 0..31")),
              std::string::npos)
        << text;
    EXPECT_EQ(session.cache().batch(), 0);
  }
}

TEST_F(Decoders, WeightsStayInTheFileUnlessTheirTypeMustChange) {
  TinyModel tiny;
  for (auto& [name, tensor] : tiny.tensors) {
    const Tensor narrow =
        clone(host_, TensorView::contiguous(tensor.bytes.data(), DType::kF32, Shape(tensor.shape)),
              DType::kBF16, "test");
    tensor.dtype = DType::kBF16;
    tensor.bytes.assign(narrow.view().bytes(), narrow.view().bytes() + narrow.view().byte_size());
  }
  const size_t norms = sizeof(float) * 5 * 16;
  for (const auto& [dtype, converted] : {std::pair<std::optional<DType>, bool>{std::nullopt, false},
                                         {DType::kF32, false},
                                         {DType::kF16, true}}) {
    const auto model = load(tiny, dtype);
    EXPECT_EQ(model->weights().converted_bytes > norms, converted);
    EXPECT_EQ(model->dtype(), dtype.value_or(DType::kBF16));
  }
  EXPECT_EQ(tracking_.of("weights").live, 0u);
}

TEST_F(Decoders, ABias_IsReadWhereTheConfigSaysSo) {
  Json config = TinyModel::default_config();
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  TinyModel tiny(config);
  EXPECT_NE(error_text([&] { load(tiny); }).find("q_proj.bias\" is missing"), std::string::npos);
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [name, n] : {std::pair{"self_attn.q_proj", 16},
                                  {"self_attn.k_proj", 8},
                                  {"self_attn.v_proj", 8},
                                  {"self_attn.o_proj", 16},
                                  {"mlp.gate_proj", 24},
                                  {"mlp.up_proj", 24},
                                  {"mlp.down_proj", 16}}) {
      const std::string full = str("model.layers.", layer, ".", name, ".bias");
      tiny.tensors[full] = TinyModel::random(full, {n});
    }
  }
  EXPECT_NE(logits(load(tiny), ids_), logits(load(TinyModel()), ids_));
}

// Case 24: the base of a dynamic rope grows with the row, and a short call afterwards is back at
// the unscaled table.
TEST_F(Decoders, Case24_DynamicRopeGrowsWithTheRowAndComesBack) {
  Json config = TinyModel::default_config();
  config["max_position_embeddings"] = 16;
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  const auto model = load(TinyModel(config));
  const std::vector<float> before = logits(model, ids_);
  logits(model, some_ids(40, 32, 1));
  EXPECT_EQ(logits(model, ids_), before);
  EXPECT_EQ(before, logits(load(TinyModel()), ids_));
}

}  // namespace
}  // namespace larder::test
