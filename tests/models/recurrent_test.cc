// Mamba and RecurrentGemma: state by state, row by row, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "larder/generate/generation.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_recurrent.h"

namespace larder::test {
namespace {

constexpr int64_t kVocab = 32;

class RecurrentModels : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Model> load(const Json& changes = Json::object(),
                                    std::optional<DType> dtype = std::nullopt) {
    const bool mamba = std::string(GetParam()) == "mamba";
    (mamba ? tiny_mamba(changes) : tiny_recurrent_gemma(changes)).write(folder_.path());
    return Model::load(folder_.path(), dtype, host_);
  }
  std::vector<std::vector<float>> run(const std::shared_ptr<const Model>& model,
                                      const std::vector<Ids>& prompts, int64_t chunk,
                                      int threads = 1, const std::string& kernels = {},
                                      const std::string& cache = "dynamic") {
    Session session(model, {cache, model->dtype(), 100, AttentionKind::kFused, threads, kernels},
                    host_);
    return all_logits(session, prompts, chunk);
  }
  Json kernel(int width) const {
    return std::string(GetParam()) == "mamba" ? Json{{"conv_kernel", width}}
                                              : Json{{"conv1d_width", width}};
  }

  TempFolder folder_;
  HostAllocator host_;
};
INSTANTIATE_TEST_SUITE_P(Both, RecurrentModels, ::testing::Values("mamba", "recurrent_gemma"));

void expect_same(std::span<const float> got, std::span<const float> want, const std::string& how) {
  std::string where;
  EXPECT_TRUE(same_bits(got, want, where)) << how << ": " << where;
}

// The logits of ids [at, at + n), fed to row 0 of the cache in one step.
std::vector<float> feed(Session& session, Cache& cache, const Ids& ids, int64_t at, int32_t n) {
  const std::vector<int32_t> q_start{0, n}, slot{0};
  std::vector<int64_t> position(static_cast<size_t>(n));
  std::iota(position.begin(), position.end(), at);
  std::vector<int32_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  const Step step{1, n, q_start.data(), position.data(), slot.data(), false};
  const std::span<const int32_t> part(ids.data() + at, static_cast<size_t>(n));
  const TensorView logits =
      session.model().forward(session.exec(), step, part, rows, cache, AttentionKind::kFused);
  return {logits.as<float>(), logits.as<float>() + n * kVocab};
}

// A prompt and single steps after it, against a forward of the whole text at each length.
TEST_P(RecurrentModels, Case18_DecodeIsAFullForwardAtEachLength) {
  for (const int width : {4, 1, 2, 3, 7}) {
    const auto model = load(kernel(width));
    for (int32_t prompt = 1; prompt <= 5; ++prompt) {
      const Ids ids = some_ids(prompt + 6, kVocab, static_cast<uint64_t>(prompt));
      Session session(model, {}, host_);
      for (int32_t at = 0; at < prompt + 6; at = at == 0 ? prompt : at + 1) {
        const int32_t n = at == 0 ? prompt : 1;
        const std::vector<float> stepped = feed(session, session.cache(), ids, at, n);
        const auto full = run(model, {Ids(ids.begin(), ids.begin() + at + n)}, 100)[0];
        EXPECT_TRUE(
            std::ranges::equal(std::span(stepped).last(kVocab), std::span(full).last(kVocab)))
            << "kernel " << width << ", prompt " << prompt << ", length " << at + n;
      }
    }
  }
}

TEST_P(RecurrentModels, Case18_ABatchOfDifferentLengthsIsEachRowAlone) {
  const auto model = load();
  const std::vector<Ids> prompts = {some_ids(2, kVocab, 1), some_ids(5, kVocab, 2),
                                    some_ids(23, kVocab, 3), some_ids(1, kVocab, 4)};
  for (const int64_t chunk : {100, 3, 1}) {
    const auto together = run(model, prompts, chunk, 2);
    for (size_t r = 0; r < prompts.size(); ++r)
      expect_same(together[r], run(model, {prompts[r]}, 100)[0], str("row ", r, " chunk ", chunk));
  }
}

TEST_P(RecurrentModels, HaveTheSameBitsInAnyChunksThreadsAndCacheKinds) {
  const Ids ids = some_ids(90, kVocab, 5);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto model = load(Json::object(), dtype);
    for (const Kernels* set : available_kernel_sets()) {
      const std::vector<float> alone = run(model, {ids}, 100, 1, set->name)[0];
      for (const int64_t chunk : {64, 7, 1}) {
        for (const int threads : {1, 3}) {
          expect_same(run(model, {ids}, chunk, threads, set->name)[0], alone,
                      str(dtype_name(dtype), " ", set->name, " chunk ", chunk));
        }
      }
      for (const char* cache : {"static", "mamba", "recurrent", "dynamic_full"})
        expect_same(run(model, {ids}, 7, 2, set->name, cache)[0], alone, cache);
    }
  }
}

// The second half of a text from a fork, and from another cache that loaded what this one saved.
TEST_P(RecurrentModels, GoOnFromForkedAndReloadedStates) {
  const auto model = load();
  const Ids ids = some_ids(20, kVocab, 6);
  const std::vector<float> whole = run(model, {ids}, 100)[0];
  Session session(model, {}, host_);
  all_logits(session, {Ids(ids.begin(), ids.begin() + 12)}, 100);
  const auto rest = [&](Cache& cache) {
    expect_same(feed(session, cache, ids, 12, 8), std::span(whole).last(8 * kVocab), "the rest");
  };
  Cache fork = session.cache().fork();
  Cache loaded = CacheRegistry().make("dynamic", model->cache_layers(), {}, host_);
  for (int32_t layer = 0; layer < loaded.num_layers(); ++layer) {
    const RowImage image = session.cache().layer(layer).save(0, host_);
    RowImageView view{image.seq_len, {}};
    for (const SavedTensor& saved : image.tensors)
      view.tensors.push_back({saved.name, saved.tensor.view()});
    loaded.layer(layer).load(std::span(&view, 1))->apply();
  }
  rest(fork);
  rest(session.cache());
  rest(loaded);
}

TEST_P(RecurrentModels, ACancelledStepCanBeFedAgain) {
  const auto model = load();
  const Ids ids = some_ids(7, kVocab, 8);
  Session session(model, {}, host_);
  const std::vector<int64_t> position{0, 1, 2, 3, 4, 5, 6};
  const std::vector<int32_t> q_start{0, 7}, slot{0}, rows{6};
  const Step step{1, 7, q_start.data(), position.data(), slot.data(), false};
  const auto logits = [&] {
    const TensorView view = session.forward(step, ids, rows);
    return std::vector<float>(view.as<float>(), view.as<float>() + kVocab);
  };
  const std::vector<float> first = logits();
  session.cache().cancel(step);
  EXPECT_EQ(session.cache().seq_len(0), 0);
  EXPECT_EQ(logits(), first);
}

TEST_P(RecurrentModels, Case12_ASecondPromptStartsFromZeroStates) {
  const auto model = load();
  const Ids first = some_ids(9, kVocab, 1), second = some_ids(1, kVocab, 2);
  Session session(model, {}, host_);
  all_logits(session, {first}, 100);
  const auto after = all_logits(session, {second}, 100)[0];  // resets
  EXPECT_EQ(after, run(model, {second}, 100)[0]);
}

TEST_P(RecurrentModels, WithoutAContextLimitAHugeNumberOfNewTokensIsFine) {
  const auto model = load();
  EXPECT_EQ(model->info().max_position_embeddings, std::numeric_limits<int64_t>::max());
  Session session(model, {}, host_);
  Request request{some_ids(3, kVocab, 1), std::numeric_limits<int64_t>::max(), {}, {}, {}};
  GenerationOptions options;
  int left = 50;
  options.on_token = [&](const TokenEvent&) { return --left > 0; };
  EXPECT_EQ(generate(session, request, options).output_ids.size(), 50u);
}

TEST_P(RecurrentModels, ASteadyDecodeStepAllocatesNothing) {
  const auto model = load(Json::object(), DType::kBF16);
  for (const int threads : {1, 2}) {
    TrackingAllocator tracking(host_);
    Session session(model, {"static", DType::kBF16, 200, AttentionKind::kFused, threads, {}},
                    tracking);
    Generation generation(session, {{some_ids(30, kVocab, 1), 60, {}, {}, {}},
                                    {some_ids(9, kVocab, 2), 60, {}, {}, {}}});
    for (int i = 0; i < 4; ++i) generation.step();
    const size_t calls = tracking.total().calls, before = allocations_so_far();
    for (int i = 0; i < 20; ++i) generation.step();
    EXPECT_EQ(allocations_so_far() - before, 0u);
    EXPECT_EQ(tracking.total().calls, calls);
  }
}

TEST_P(RecurrentModels, AnIdOutsideTheVocabularyChangesNothing) {
  const auto model = load();
  Session session(model, {}, host_);
  EXPECT_NE(error_text([&] { all_logits(session, {{3, 32}}, 100); }).find("32"), std::string::npos);
  EXPECT_EQ(session.cache().seq_len(0), 0);
}

TEST_P(RecurrentModels, AnUntiedHeadIsRead) {
  const auto tied = run(load(), {some_ids(4, kVocab, 1)}, 100)[0];
  const auto model = load({{"tie_word_embeddings", false}});
  EXPECT_NE(run(model, {some_ids(4, kVocab, 1)}, 100)[0], tied);
  EXPECT_EQ(model->info().num_parameters,
            load()->info().num_parameters + kVocab * (GetParam()[0] == 'm' ? 12 : 16));
}

// The numbers in the file are the numbers that are counted.
TEST_P(RecurrentModels, CountTheirParameters) {
  for (const Json& changes : {Json::object(), Json{{"use_bias", true}, {"use_conv_bias", false}},
                              Json{{"attention_bias", true}}}) {
    if (GetParam()[0] == 'm' && changes.contains("attention_bias")) continue;
    const bool mamba = std::string(GetParam()) == "mamba";
    const TinyModel tiny = mamba ? tiny_mamba(changes) : tiny_recurrent_gemma(changes);
    int64_t numbers = 0;
    for (const auto& [name, tensor] : tiny.tensors)
      numbers += static_cast<int64_t>(tensor.bytes.size() / sizeof(float));
    EXPECT_EQ(load(changes)->info().num_parameters, numbers) << changes.dump();
  }
}

class TinyMamba : public ::testing::Test {
 protected:
  std::string refusal(TinyModel tiny) {
    tiny.write(folder_.path());
    return error_text([&] { Model::load(folder_.path(), std::nullopt, host_); });
  }
  std::vector<float> logits(const TinyModel& tiny) {
    tiny.write(folder_.path());
    Session session(Model::load(folder_.path(), std::nullopt, host_), {}, host_);
    return all_logits(session, {some_ids(6, kVocab, 1)}, 100)[0];
  }
  TempFolder folder_;
  HostAllocator host_;
};

TEST_F(TinyMamba, Case34_MissingAndMisshapenWeightsAreListedTogether) {
  TinyModel tiny = tiny_mamba();
  tiny.tensors.erase("backbone.layers.1.mixer.D");
  tiny.tensors["backbone.layers.0.mixer.conv1d.weight"] = TinyModel::random("x", {20, 4});
  const std::string text = refusal(tiny);
  EXPECT_NE(text.find("2 weights"), std::string::npos) << text;
  EXPECT_NE(text.find("mixer.D\" is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("is [20, 4], expected [20, 1, 4]"), std::string::npos) << text;
}

TEST_F(TinyMamba, TheOlderNameOfTheEmbeddingIsRead) {
  TinyModel tiny = tiny_mamba();
  const std::vector<float> expected = logits(tiny);
  tiny.tensors["backbone.embedding.weight"] = tiny.tensors["backbone.embeddings.weight"];
  tiny.tensors.erase("backbone.embeddings.weight");
  EXPECT_EQ(logits(tiny), expected);
}

TEST_F(TinyMamba, TimeStepRankMayBeAuto) {
  const TinyModel one = tiny_mamba({{"time_step_rank", 1}});
  TinyModel automatic = tiny_mamba({{"time_step_rank", "auto"}});
  EXPECT_EQ(logits(automatic), logits(one));
  automatic.config.erase("time_step_rank");
  EXPECT_EQ(logits(automatic), logits(one));
}

TEST_F(TinyMamba, AllFaultsOfAConfigAreInOneLine) {
  TinyModel tiny = tiny_mamba();
  tiny.config.update({{"state_size", 0},
                      {"hidden_act", "gelu"},
                      {"conv_kernel", "4"},
                      {"vocab_size", nullptr},
                      {"time_step_rank", 1.5},
                      {"mlp_bias", true}});
  const std::string text = refusal(tiny);
  for (const char* part :
       {"state_size must be between 1 and", "hidden_act \"gelu\"",
        "conv_kernel must be a whole number", "vocab_size is null", "time_step_rank", "mlp_bias"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST_F(TinyMamba, AllFaultsOfARecurrentGemmaConfigAreInOneLine) {
  TinyModel tiny = tiny_recurrent_gemma();
  tiny.config.update({{"intermediate_size", 27},
                      {"lru_width", 13},
                      {"block_types", {"mamba"}},
                      {"partial_rotary_factor", 0.4},
                      {"num_key_value_heads", 3},
                      {"rope_scaling", {{"type", "linear"}}},
                      {"attention_window_size", 0},
                      {"embeddings_scale_by_sqrt_dim", false}});
  const std::string text = refusal(tiny);
  for (const char* part :
       {"intermediate_size 27 is not even", "lru_width 13 is not a multiple",
        "block_types: \"mamba\"", "partial_rotary_factor 0.4", "num_key_value_heads 3",
        "rope_scaling", "attention_window_size", "embeddings_scale_by_sqrt_dim"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST_F(TinyMamba, RecurrentGemmasPatternHasTwoNamesAndIsCut) {
  TinyModel tiny = tiny_recurrent_gemma();
  const std::vector<float> expected = logits(tiny);
  tiny.config["_block_types"] = tiny.config["block_types"];
  tiny.config["block_types"] = {"attention"};  // the other name wins
  EXPECT_EQ(logits(tiny), expected);
}

TEST_F(TinyMamba, DraftsAreRefusedAtTheStart) {
  tiny_mamba().write(folder_.path());
  Session session(Model::load(folder_.path(), std::nullopt, host_), {}, host_);
  EXPECT_EQ(session.cache().tentative_limit(0), 0);
}

}  // namespace
}  // namespace larder::test
