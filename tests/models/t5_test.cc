#include "larder/models/t5.h"

#include <gtest/gtest.h>

#include <numeric>

#include "larder/generate/session.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

constexpr int64_t kVocab = 32;

TinyModel tiny_t5(const Json& changes = Json::object()) {
  TinyModel tiny;
  tiny.config = {{"architectures", {"T5ForConditionalGeneration"}},
                 {"model_type", "t5"},
                 {"vocab_size", kVocab},
                 {"d_model", 12},
                 {"d_kv", 8},
                 {"d_ff", 20},
                 {"num_layers", 2},
                 {"num_decoder_layers", 3},
                 {"num_heads", 2},
                 {"relative_attention_num_buckets", 8},
                 {"relative_attention_max_distance", 16},
                 {"feed_forward_proj", "gated-gelu"},
                 {"is_encoder_decoder", true},
                 {"decoder_start_token_id", 0}};
  tiny.config.update(changes);
  tiny.tensors.clear();
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    tiny.tensors[name] = TinyModel::random(name, std::move(shape));
  };
  const bool gated = tiny.config.at("feed_forward_proj") != "relu";
  add("shared.weight", {kVocab, 12});
  if (!tiny.config.value("tie_word_embeddings", true)) add("lm_head.weight", {kVocab, 12});
  for (const std::string stack : {"encoder", "decoder"}) {
    const bool cross = stack == "decoder";
    add(stack + ".final_layer_norm.weight", {12});
    add(stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight", {8, 2});
    for (int i = 0; i < (cross ? 3 : 2); ++i) {
      const std::string at = str(stack, ".block.", i, ".layer.");
      for (int part = 0; part < (cross ? 2 : 1); ++part) {
        const std::string name = str(at, part, part == 0 ? ".SelfAttention." : ".EncDecAttention.");
        add(str(at, part, ".layer_norm.weight"), {12});
        for (const char* x : {"q", "k", "v"}) add(name + x + ".weight", {16, 12});
        add(name + "o.weight", {12, 16});
      }
      const std::string ff = str(at, cross ? 2 : 1, ".");
      add(ff + "layer_norm.weight", {12});
      if (gated) add(ff + "DenseReluDense.wi_0.weight", {20, 12});
      add(ff + (gated ? "DenseReluDense.wi_1.weight" : "DenseReluDense.wi.weight"), {20, 12});
      add(ff + "DenseReluDense.wo.weight", {12, 20});
    }
  }
  return tiny;
}

class T5Models : public ::testing::Test {
 protected:
  std::shared_ptr<const Model> load(const Json& changes = Json::object(),
                                    std::optional<DType> dtype = std::nullopt) {
    tiny_t5(changes).write(folder_.path());
    return Model::load(folder_.path(), dtype, host_);
  }
  TempFolder folder_;
  HostAllocator host_;
};

// Rows of ids behind what the cache rows slot.. hold.
struct Rows {
  Rows(const Cache& cache, const std::vector<Ids>& rows, int32_t first_slot = 0) {
    for (size_t r = 0; r < rows.size(); ++r) {
      const int32_t row = first_slot + static_cast<int32_t>(r);
      for (size_t i = 0; i < rows[r].size(); ++i)
        position.push_back(cache.seq_len(row) + static_cast<int64_t>(i));
      ids.insert(ids.end(), rows[r].begin(), rows[r].end());
      slot.push_back(row);
      q_start.push_back(static_cast<int32_t>(ids.size()));
    }
    step = {static_cast<int32_t>(slot.size()),
            q_start.back(),
            q_start.data(),
            position.data(),
            slot.data(),
            false};
  }
  Ids ids, slot, q_start{0};
  std::vector<int64_t> position;
  Step step;
};

void encode(Session& session, const std::vector<Ids>& sources, int32_t first_slot = 0) {
  const Cache none({});
  const Rows rows(none, sources, first_slot);
  session.encode(rows.step, rows.ids);
}

// The logits of every token, row after row.
std::vector<float> decode(Session& session, const std::vector<Ids>& targets) {
  const Rows rows(session.cache(), targets);
  Ids all(rows.ids.size());
  std::iota(all.begin(), all.end(), 0);
  const TensorView logits = session.forward(rows.step, rows.ids, all);
  return {logits.as<float>(), logits.as<float>() + logits.count()};
}

void expect_same(std::span<const float> got, std::span<const float> want, const std::string& how) {
  std::string where;
  EXPECT_TRUE(same_bits(got, want, where)) << how << ": " << where;
}

TEST_F(T5Models, ARowIsTheSameInABatchAndInAnySteps) {
  const Ids source = some_ids(70, kVocab, 1), target = some_ids(40, kVocab, 2);
  for (const Json& changes : {Json::object(), Json{{"feed_forward_proj", "relu"}},
                              Json{{"tie_word_embeddings", false}}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto model = load(changes, dtype);
      Session alone(model, {}, host_);
      encode(alone, {source});
      const std::vector<float> expected = decode(alone, {target});
      Session together(model, {"encoder_decoder", std::nullopt, 0, AttentionKind::kFused, 2},
                       host_);
      encode(together, {some_ids(3, kVocab, 3), source});
      encode(together, {some_ids(90, kVocab, 4)}, 2);
      std::vector<float> got;
      for (size_t at = 0; at < target.size(); at += 5) {
        const Ids part(target.begin() + static_cast<int64_t>(at),
                       target.begin() + static_cast<int64_t>(at) + 5);
        const Ids other = some_ids(at % 3 == 0 ? 7 : 1, kVocab, at);
        const auto logits = decode(together, {other, part, {1}});
        const auto row = std::span(logits).subspan(other.size() * kVocab, 5 * kVocab);
        got.insert(got.end(), row.begin(), row.end());
      }
      expect_same(got, expected, changes.dump());
    }
  }
}

class Case17 : public T5Models {};

TEST_F(Case17, CrossKeysAreOfTheNewSourceAfterAResetAndFollowTheirRows) {
  const auto model = load();
  const Ids a = some_ids(6, kVocab, 1), b = some_ids(3, kVocab, 2), target = {0, 5, 9, 4};
  Session session(model, {}, host_);
  const auto alone = [&](const Ids& source) {
    Session fresh(model, {}, host_);
    encode(fresh, {source});
    return decode(fresh, {target});
  };
  encode(session, {a});
  expect_same(decode(session, {target}), alone(a), "the first source");
  session.reset();
  EXPECT_EQ(session.cache().cross(0).seq_len(0), 0);
  encode(session, {b});
  EXPECT_EQ(session.cache().cross(0).seq_len(0), 3);
  expect_same(decode(session, {target}), alone(b), "the second source");

  // Three beams of two rows, reordered within their own row, then the first row ends.
  session.reset();
  encode(session, {a, b});
  decode(session, {{0}, {0}});
  session.cache().select_rows(std::vector<int32_t>{0, 0, 0, 1, 1, 1});
  decode(session, {{5}, {5}, {5}, {5}, {5}, {5}});
  session.cache().select_rows(std::vector<int32_t>{2, 0, 1, 5, 5, 3});
  session.cache().select_rows(std::vector<int32_t>{3, 4, 5});
  const auto beams = decode(session, {{9, 4}, {9, 4}, {9, 4}});
  const auto want = alone(b);
  for (size_t beam = 0; beam < 3; ++beam)
    expect_same(std::span(beams).subspan(beam * 2 * kVocab, 2 * kVocab),
                std::span(want).last(2 * kVocab), str("beam ", beam));
}

TEST_F(T5Models, ASourceComesOnceAndFirst) {
  Session session(load(), {}, host_);
  EXPECT_NE(error_text([&] { decode(session, {{0}}); }).find("encode"), std::string::npos);
  encode(session, {{3, 4, 5}});
  EXPECT_NE(error_text([&] { encode(session, {{6}}); }).find("already"), std::string::npos);
  EXPECT_NE(error_text([&] { encode(session, {{32}}, 1); }).find("32"), std::string::npos);
  EXPECT_EQ(decode(session, {{0}}).size(), static_cast<size_t>(kVocab));
  EXPECT_EQ(session.cache().cross(2).seq_len(0), 3);
  EXPECT_EQ(session.cache().seq_len(0), 1);
}

TEST_F(T5Models, WithoutMemoryForASourceNothingHasChanged) {
  const auto model = load();
  for (size_t fail_at = 0;; ++fail_at) {
    FaultAllocator faults(host_);
    Session session(model, {}, faults);
    faults.arm(fail_at);
    const std::string text = error_text([&] { encode(session, {{3, 4, 5}}); });
    for (int32_t layer = 0; layer < 3; ++layer)
      EXPECT_EQ(session.cache().cross(layer).seq_len(0), text.empty() ? 3 : 0);
    if (text.empty()) break;
    encode(session, {{3, 4, 5}});
    decode(session, {{0}});
  }
}

TEST_F(T5Models, AllFaultsOfAConfigAreInOneLine) {
  TinyModel tiny = tiny_t5();
  tiny.config.update({{"d_kv", 0},
                      {"feed_forward_proj", "gated-relu6"},
                      {"relative_attention_num_buckets", 2},
                      {"is_encoder_decoder", false},
                      {"num_heads", nullptr}});
  tiny.write(folder_.path());
  const std::string text = error_text([&] { Model::load(folder_.path(), std::nullopt, host_); });
  for (const char* part : {"d_kv must be", "gated-relu6", "relative_attention_num_buckets 2",
                           "is_encoder_decoder", "num_heads is null"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST_F(T5Models, CountTheirParameters) {
  for (const char* ff : {"relu", "gated-silu"}) {
    const Json changes = {{"feed_forward_proj", ff}, {"tie_word_embeddings", false}};
    int64_t numbers = 0;
    for (const auto& [name, tensor] : tiny_t5(changes).tensors)
      numbers += static_cast<int64_t>(tensor.bytes.size() / sizeof(float));
    EXPECT_EQ(load(changes)->info().num_parameters, numbers);
  }
}

TEST(RelativeBucket, IsExactNearByAndLogarithmicBeyond) {
  // 32 buckets, largest distance 128: values of the published model.
  const auto back = [](int64_t d) { return relative_bucket(-d, Direction::kBackward, 32, 128); };
  EXPECT_EQ(back(0), 0);
  EXPECT_EQ(back(-5), 0);  // keys behind the query share the first
  EXPECT_EQ(back(15), 15);
  EXPECT_EQ(back(16), 16);
  EXPECT_EQ(back(32), 21);
  EXPECT_EQ(back(128), 31);
  EXPECT_EQ(back(100000), 31);
  const auto both = [](int64_t d) { return relative_bucket(d, Direction::kBoth, 32, 128); };
  EXPECT_EQ(both(-7), 7);
  EXPECT_EQ(both(7), 23);
  EXPECT_EQ(both(-8), 8);
  EXPECT_EQ(both(-16), 10);
  EXPECT_EQ(both(64), 30);
  EXPECT_EQ(both(1000), 31);
}

TEST(EncoderDecoderCache, ItsSettingsChooseTheKindOfTheDecodersOwnLayers) {
  HostAllocator host;
  LayerSpec own{2, 4, 0}, cross = own;
  cross.kind = LayerKind::kCross;
  const std::vector<LayerSpec> specs = {own, cross};
  const auto make = [&](const std::string& config) {
    return CacheRegistry().make("encoder_decoder", specs, {DType::kF32, 40, 0, config}, host);
  };
  EXPECT_EQ(make("").max_len(), -1);
  EXPECT_EQ(make(R"({"cache": "static"})").max_len(), 40);
  EXPECT_EQ(make(R"({"cache": "static"})").num_cross(), 1);
  for (const char* wrong : {R"({"cache": "encoder_decoder"})", R"({"cache": "none"})",
                            R"({"nbits": 4})", R"({"cache": "static", "cache_config": {"x": 1}})"})
    EXPECT_NE(error_text([&] { make(wrong); }), "") << wrong;
}

}  // namespace
}  // namespace larder::test
