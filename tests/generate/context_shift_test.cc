// Generation past a full context.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/convert.h"
#include "larder/generate/beam_search.h"
#include "larder/generate/generation.h"
#include "larder/generate/speculation.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_recurrent.h"

namespace larder::test {
namespace {

constexpr int64_t kContext = 16, kKeep = 2, kDiscard = 7;
constexpr int64_t kFiveShifts = 12 + 4 * kDiscard + 3;  // new tokens after a prompt of 5

std::shared_ptr<const Model> tiny(const Json& changes, Allocator& allocator,
                                  DType dtype = DType::kF32) {
  Json config = TinyModel::default_config();
  config.update(changes);
  const TempFolder folder;
  TinyModel(config).write(folder.path());
  return Model::load(folder.path(), dtype, allocator);
}

SessionOptions with_cache(const std::string& cache, const std::string& config = "",
                          int64_t max_cache_len = kContext) {
  return {.cache_implementation = cache,
          .max_cache_len = max_cache_len,
          .threads = 1,
          .cache_config = config};
}

GenerationOptions shifting(int64_t keep = kKeep, int64_t discard = kDiscard) {
  GenerationOptions options;
  options.context_shift = ContextShiftParams{keep, discard};
  return options;
}

// One row, token by token, with a cache that is shifted by hand.
class ByHand {
 public:
  ByHand(Session& session, int64_t keep, int64_t discard, int64_t context)
      : session_(session), keep_(keep), discard_(discard), context_(context) {}

  Ids held;  // what the cache holds
  int64_t shifts = 0;

  Ids run(const Ids& prompt, int64_t count) {
    Ids out;
    feed(prompt);
    while (static_cast<int64_t>(out.size()) < count) {
      out.push_back(best_);
      if (static_cast<int64_t>(out.size()) == count) break;
      if (static_cast<int64_t>(held.size()) == context_) shift();
      feed({out.back()});
    }
    return out;
  }

 private:
  void feed(const Ids& ids) {
    const auto n = static_cast<int32_t>(ids.size());
    const int32_t q_start[] = {0, n}, slot = 0, last = n - 1;
    std::vector<int64_t> position;
    for (int32_t i = 0; i < n; ++i) position.push_back(static_cast<int64_t>(held.size()) + i);
    const Step step{1, n, q_start, position.data(), &slot, false};
    const TensorView logits = session_.forward(step, ids, std::span(&last, 1));
    const float* begin = logits.as<float>();
    best_ = static_cast<int32_t>(std::max_element(begin, begin + logits.shape[1]) - begin);
    held.insert(held.end(), ids.begin(), ids.end());
  }
  void shift() {
    std::vector<std::vector<float>> angles;
    std::vector<ContextShift> layers;
    for (int32_t layer = 0; layer < session_.cache().num_layers(); ++layer)
      angles.push_back(session_.model().key_rotation(layer, -discard_).value());
    for (const std::vector<float>& each : angles) {
      const auto cos_sin = std::span(each);
      layers.push_back(
          {keep_, discard_, cos_sin.first(each.size() / 2), cos_sin.subspan(each.size() / 2)});
    }
    session_.cache().shift(0, layers);
    held.erase(held.begin() + keep_, held.begin() + keep_ + discard_);
    ++shifts;
  }
  Session& session_;
  int64_t keep_, discard_, context_;
  int32_t best_ = 0;
};

// K and V of a row of one layer, as f32.
std::pair<std::vector<float>, std::vector<float>> content(const Cache& cache, int32_t layer_index,
                                                          int32_t row) {
  const KVLayer& layer = cache.kv(layer_index);
  HostAllocator host;
  const Shape shape{layer.spec().num_kv_heads, layer.kept_len(row), layer.spec().head_dim};
  const Tensor k(host, shape, layer.dtype(), "test"), v(host, shape, layer.dtype(), "test");
  layer.read(row, k, v);
  const auto floats = [&](const Tensor& tensor) {
    const Tensor wide = clone(host, tensor, DType::kF32, "test");
    return std::vector<float>(wide.as<float>(), wide.as<float>() + shape[0] * shape[1] * shape[2]);
  };
  return {floats(k), floats(v)};
}

struct Setting {
  std::string name;
  Json changes;  // null: the toy model of that name
  std::string cache = "static";
  std::string config = "";
  DType dtype = DType::kF32;
};

class ContextShifts : public ::testing::TestWithParam<Setting> {
 protected:
  std::shared_ptr<const Model> model() {
    const Setting& s = GetParam();
    return s.changes.is_null() ? Model::load(toy_folder(s.name), s.dtype, host_)
                               : tiny(s.changes, host_, s.dtype);
  }
  HostAllocator host_;
};

const Json kShort = {{"max_position_embeddings", 16}};
Json short_with(const Json& more) {
  Json all = kShort;
  all.update(more);
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Settings, ContextShifts,
    ::testing::Values(
        Setting{"toy-llama", nullptr}, Setting{"toy-mistral", nullptr},
        Setting{"toy-gemma2", nullptr}, Setting{"toy-llama", nullptr, "static", "", DType::kBF16},
        Setting{"toy-gemma2", nullptr, "static", "", DType::kF16},
        Setting{"dynamic", kShort, "dynamic"}, Setting{"bf16", kShort, "dynamic", "", DType::kBF16},
        Setting{"linear",
                short_with({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}}),
                "dynamic"},
        Setting{"llama3",
                short_with({{"rope_scaling",
                             {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8}}}}),
                "dynamic_full"},
        Setting{"yarn",
                short_with({{"rope_scaling",
                             {{"rope_type", "yarn"},
                              {"factor", 4.0},
                              {"original_max_position_embeddings", 8}}}}),
                "dynamic"},
        Setting{"window",
                short_with({{"layer_types", {"sliding_attention", "full_attention"}},
                            {"sliding_window", 4}}),
                "hybrid"},
        Setting{"offloaded", kShort, "offloaded"},
        Setting{"int8", kShort, "quantized",
                R"({"backend": "larder", "nbits": 8, "residual_length": 0})"},
        Setting{"int4", kShort, "quantized",
                R"({"backend": "quanto", "nbits": 4, "residual_length": 4, "q_group_size": 4})"}),
    [](const auto& param) {
      std::string name = param.param.name + "_" + param.param.cache + "_" +
                         std::string(dtype_name(param.param.dtype));
      std::ranges::replace(name, '-', '_');
      return name;
    });

TEST_P(ContextShifts, Case48_FiveShiftsGiveTheTokensAndKeysOfACacheShiftedByHand) {
  const auto model = this->model();
  const Setting& s = GetParam();
  SessionOptions options = with_cache(s.cache, s.config);
  const Ids prompt = some_ids(5, model->info().vocab_size, 3);
  Session by_hand(model, options, host_), session(model, options, host_);
  ASSERT_EQ(context_length(session), kContext);
  ByHand reference(by_hand, kKeep, kDiscard, kContext);
  const Ids expected = reference.run(prompt, kFiveShifts);
  ASSERT_EQ(reference.shifts, 5);
  Generation generation(session, {{prompt, kFiveShifts, {}, {}, {}}}, shifting());
  generation.run();
  EXPECT_EQ(generation.result(0).output_ids, expected);
  EXPECT_EQ(generation.result(0).finish_reason, FinishReason::kLength);
  EXPECT_EQ(static_cast<int64_t>(generation.ids(0).size()), 5 + kFiveShifts);
  Ids held = generation.context_ids(0);
  held.pop_back();
  EXPECT_EQ(held, reference.held);
  ASSERT_EQ(session.cache().seq_len(0), static_cast<int64_t>(held.size()));
  for (int32_t layer = 0; layer < session.cache().num_layers(); ++layer) {
    const auto [k, v] = content(session.cache(), layer, 0);
    const auto [k_ref, v_ref] = content(by_hand.cache(), layer, 0);
    ASSERT_EQ(k.size(), k_ref.size());
    for (size_t i = 0; i < k.size(); ++i) ASSERT_NEAR(k[i], k_ref[i], 1e-5f) << layer << " " << i;
    EXPECT_EQ(v, v_ref);
  }
}

TEST_P(ContextShifts, Case48_RowsOfDifferentLengthsAreThoseRowsAlone) {
  const auto model = this->model();
  const SessionOptions options = with_cache(GetParam().cache, GetParam().config);
  std::vector<Request> requests;
  for (const int64_t length : {1, 16, 9})
    requests.push_back({some_ids(length, model->info().vocab_size, static_cast<uint64_t>(length)),
                        20 + length,
                        {},
                        {},
                        {}});
  std::vector<Ids> alone;
  for (const Request& request : requests) {
    Session session(model, options, host_);
    alone.push_back(generate(session, request, shifting()).output_ids);
    EXPECT_EQ(static_cast<int64_t>(alone.back().size()), request.max_new_tokens);
  }
  Session session(model, options, host_);
  Generation generation(session, requests, shifting());
  generation.run();
  for (size_t row = 0; row < requests.size(); ++row)
    EXPECT_EQ(generation.result(row).output_ids, alone[row]) << row;
}

// With one layer, K and V of a token depend on the token and its position alone, so the shifted
// cache is that of the remaining tokens, fed anew.
TEST(ContextShift, Case48_KeysAreThoseOfTheRemainingTokensFedAnew) {
  HostAllocator host;
  for (const char* type : {"default", "linear", "yarn"}) {
    const Json changes = {
        {"num_hidden_layers", 1},
        {"max_position_embeddings", kContext},
        {"rope_scaling",
         {{"rope_type", type}, {"factor", 4.0}, {"original_max_position_embeddings", 8}}}};
    const auto model = tiny(changes, host);
    Session session(model, with_cache("dynamic"), host), fresh(model, with_cache("dynamic"), host);
    Generation generation(session, {{some_ids(5, 32, 7), kFiveShifts, {}, {}, {}}}, shifting());
    generation.run();
    Ids held = generation.context_ids(0);
    held.pop_back();
    ASSERT_EQ(session.cache().seq_len(0), static_cast<int64_t>(held.size()));
    all_logits(fresh, {held}, 99);
    const auto [k, v] = content(session.cache(), 0, 0);
    const auto [k_new, v_new] = content(fresh.cache(), 0, 0);
    ASSERT_EQ(k.size(), k_new.size());
    for (size_t i = 0; i < k.size(); ++i) ASSERT_NEAR(k[i], k_new[i], 1e-5f) << type << " " << i;
    EXPECT_EQ(v, v_new);
  }
}

TEST(ContextShift, Case48_ItComesOnlyWhenTheContextIsFullAgain) {
  HostAllocator host;
  const auto model = tiny(kShort, host);
  Session session(model, with_cache("dynamic"), host);
  Generation generation(session, {{some_ids(5, 32, 7), 40, {}, {}, {}}}, shifting());
  int64_t before = 0;
  std::vector<int64_t> filled;  // lengths from which the cache became shorter
  while (generation.step()) {
    const int64_t now = session.cache().seq_len(0);
    if (now <= before) {
      filled.push_back(before);
      EXPECT_EQ(now, kContext - kDiscard + 1);
    }
    before = now;
  }
  EXPECT_EQ(filled, std::vector<int64_t>(4, kContext));
}

TEST(ContextShift, Case48_WithoutItTheRowEndsAndWithItEndsStillCount) {
  HostAllocator host;
  const auto model = tiny(kShort, host);
  const Ids prompt = some_ids(5, 32, 7);
  const auto run = [&](Request request, const GenerationOptions& options) {
    Session session(model, with_cache("dynamic"), host);
    return generate(session, std::move(request), options);
  };
  const Result plain = run({prompt, 40, {}, {}, {}}, {});
  EXPECT_EQ(plain.output_ids.size(), 12u);
  EXPECT_EQ(plain.finish_reason, FinishReason::kLength);
  const Result shifted = run({prompt, 40, {}, {}, {}}, shifting());
  EXPECT_EQ(Ids(shifted.output_ids.begin(), shifted.output_ids.begin() + 12), plain.output_ids);
  SamplingParams varied;
  varied.repetition_penalty = 1.5;
  const Result all = run({prompt, 40, varied, {}, {}}, shifting());
  ASSERT_EQ(all.output_ids.size(), 40u);
  // An id that first comes long after the first shift ends the row there.
  for (size_t i = 13; i < 40; ++i) {
    const auto here = all.output_ids.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(all.output_ids.begin(), here, *here) != here) continue;
    const Result ended = run({prompt, 40, varied, {*here}, {}}, shifting());
    EXPECT_EQ(ended.output_ids, Ids(all.output_ids.begin(), here + 1));
    EXPECT_EQ(ended.finish_reason, FinishReason::kStop);
    return;
  }
  FAIL() << "no new id after the first shift";
}

TEST(ContextShift, PenaltiesAndDrawsFollowAllTokensSeen) {
  HostAllocator host;
  const auto model = tiny(kShort, host);
  SamplingParams once;
  once.no_repeat_ngram_size = 1;
  Session session(model, with_cache("dynamic"), host);
  const Result result = generate(session, {{1}, 31, once, {}, {}}, shifting());
  Ids sorted = result.output_ids;
  std::ranges::sort(sorted);
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()) - sorted.begin(), 31)
      << "tokens that were dropped are not repeated either";
}

TEST(ContextShift, Case48_ACacheThatWasConvertedToOneThatCannotShiftEndsTheRow) {
  HostAllocator host;
  Session session(tiny(kShort, host), with_cache("dynamic"), host);
  Generation generation(session, {{some_ids(5, 32, 7), 40, {}, {}, {}}}, shifting());
  generation.step();
  CacheOptions crossing = session.cache_options();
  crossing.config = R"({"q_group_size": 64})";
  convert_cache(session.cache(), "quantized", crossing, CacheRegistry(), host);
  generation.run();
  EXPECT_EQ(generation.result(0).output_ids.size(), 12u);
  EXPECT_EQ(generation.result(0).finish_reason, FinishReason::kLength);
  EXPECT_EQ(session.cache().seq_len(0), kContext);
}

class ContextShiftRefusals : public ::testing::Test {
 protected:
  std::string refusal(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                      const GenerationOptions& how) {
    Session session(model, options, host_);
    const std::string text = error_text([&] {
      Generation(session, {{{1, 3, 4}, 40, {}, {}, {}}}, how);
    });
    EXPECT_EQ(session.cache().batch(), 0);
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  void expect_refusal(const std::string& part, const Json& changes, const SessionOptions& options,
                      const GenerationOptions& how) {
    const std::string text = refusal(tiny(short_with(changes), host_), options, how);
    EXPECT_NE(text.find(part), std::string::npos) << text << " instead of " << part;
  }
  HostAllocator host_;
};

TEST_F(ContextShiftRefusals, Case48_NumbersThatLeaveNoRoom) {
  const auto dynamic = with_cache("dynamic");
  expect_refusal("keeps -1", Json::object(), dynamic, shifting(-1, 2));
  expect_refusal("discards 0", Json::object(), dynamic, shifting(2, 0));
  expect_refusal("discards -3", Json::object(), dynamic, shifting(2, -3));
  expect_refusal("it has 16", Json::object(), dynamic, shifting(8, 8));
  expect_refusal("it has 16", Json::object(), dynamic, shifting(16, 1));
  expect_refusal("it has 16", Json::object(), dynamic, shifting(1, INT64_MAX));
  expect_refusal("it has 12", Json::object(), with_cache("static", "", 12), shifting(4, 8));
}

TEST_F(ContextShiftRefusals, Case48_ModelsWhoseKeysCannotBeMoved) {
  expect_refusal("no context shift with LlamaForCausalLM",
                 {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}},
                 with_cache("dynamic"), shifting());
  for (const TinyModel& recurrent : {tiny_mamba(), tiny_recurrent_gemma()}) {
    const TempFolder folder;
    recurrent.write(folder.path());
    const auto model = Model::load(folder.path(), DType::kF32, host_);
    const std::string text = refusal(model, with_cache("dynamic"), shifting());
    EXPECT_NE(text.find("no context shift with"), std::string::npos) << text;
  }
}

TEST_F(ContextShiftRefusals, Case48_CachesThatCannotDropTokens) {
  expect_refusal("cross tokens", Json::object(), with_cache("quantized", R"({"q_group_size": 64})"),
                 shifting());
  const Json window = {{"layer_types", {"sliding_attention", "full_attention"}},
                       {"sliding_window", 9}};
  // Behind 2 + 7 tokens lie 7 of the 8 that the window needs.
  for (const char* kind : {"dynamic", "hybrid"})
    expect_refusal("a window of 9 needs 8", window, with_cache(kind), shifting(2, 7));
  const auto model = tiny(short_with(window), host_);
  EXPECT_EQ(refusal(model, with_cache("dynamic"), shifting(2, 6)), "");
  EXPECT_EQ(refusal(model, with_cache("dynamic_full"), shifting(2, 7)), "");
}

TEST_F(ContextShiftRefusals, Case48_WhatItCannotBeCombinedWith) {
  GenerationOptions guessing = shifting();
  guessing.drafter = std::make_shared<PromptLookup>(PromptLookupParams{4, 2});
  expect_refusal("cannot be combined with guesses", Json::object(), with_cache("dynamic"),
                 guessing);
  Session session(tiny(kShort, host_), with_cache("dynamic"), host_);
  BeamParams beams;
  beams.num_beams = 2;
  const std::string text = error_text([&] {
    BeamSearch(session, {{{1, 3, 4}, 5, {}, {}, {}}}, beams, shifting());
  });
  EXPECT_NE(text.find("cannot be used with beam search"), std::string::npos) << text;
}

}  // namespace
}  // namespace larder::test
