#include "larder/generate/speculation.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/generate/generation.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

constexpr int64_t kNew = 40;

// Guesses from a list: the tokens that will come, `right` of a round's as they are, the next one
// wrong.
class KnownFuture final : public Drafter {
 public:
  KnownFuture(Ids all, int64_t length, int64_t right)
      : all_(std::move(all)), length_(length), right_(right) {}

  void begin(const Model& /*model*/) override {}
  int64_t max_tokens() const override { return length_; }
  void propose(std::span<Draft> drafts) override {
    for (Draft& draft : drafts) {
      for (int64_t i = 0; i < std::min(length_, draft.most); ++i) {
        const size_t at = draft.ids.size() + static_cast<size_t>(i);
        const int32_t next = at < all_.size() ? all_[at] : 0;
        draft.tokens.push_back(i < right_ ? next : (next + 1) % 32);
      }
    }
  }
  void verified(std::span<const Draft> drafts) noexcept override {
    for (const Draft& draft : drafts) {
      EXPECT_LE(draft.right, std::min(right_, static_cast<int64_t>(draft.tokens.size())));
      ++rounds_;
    }
  }
  int rounds() const { return rounds_; }

 private:
  Ids all_;
  int64_t length_, right_;
  int rounds_ = 0;
};

// Models with 32 ids: full attention, and windows of 6.
class Speculation : public ::testing::Test {
 protected:
  static Json config(bool sliding) {
    Json config = TinyModel::default_config();
    config["max_position_embeddings"] = 256;
    if (sliding) {
      config["architectures"] = {"MistralForCausalLM"};
      config["model_type"] = "mistral";
      config["sliding_window"] = 6;
    }
    return config;
  }
  std::shared_ptr<const Model> model(bool sliding, float noise = 0) {
    TinyModel tiny(config(sliding));
    if (noise > 0) {
      for (auto& [name, tensor] : tiny.tensors) {
        const TinyTensor other = TinyModel::random("noise " + name, tensor.shape);
        if (tensor.dtype != DType::kF32) continue;
        auto* to = reinterpret_cast<float*>(tensor.bytes.data());
        const auto* from = reinterpret_cast<const float*>(other.bytes.data());
        for (size_t i = 0; i < tensor.bytes.size() / sizeof(float); ++i) to[i] += noise * from[i];
      }
    }
    const TempFolder folder;
    tiny.write(folder.path());
    return Model::load(folder.path(), DType::kF32, host_);
  }
  std::unique_ptr<Session> session(std::shared_ptr<const Model> model, const std::string& cache) {
    SessionOptions options{cache, std::nullopt, 128, AttentionKind::kFused, 1, {}};
    options.rollback = 16;
    if (cache == "quantized")  // flushes every few tokens
      options.cache_config = R"({"nbits": 2, "q_group_size": 8, "residual_length": 7})";
    return std::make_unique<Session>(std::move(model), options, host_);
  }
  static Request ask(Ids prompt) { return {std::move(prompt), kNew, {}, {}, {}}; }
  static Result run(Session& session, Request request, std::shared_ptr<Drafter> drafter = nullptr) {
    session.reset();
    GenerationOptions options;
    options.drafter = std::move(drafter);
    return generate(session, std::move(request), std::move(options));
  }
  static std::vector<std::string> kinds() { return CacheRegistry().names(); }

  HostAllocator host_;
  const Ids prompt_ = {1, 5, 9, 30, 2, 2, 7, 19, 4};
};

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

using Case47 = Speculation;

TEST_F(Case47, GuessesOfAnyWorthAndLengthChangeNoToken) {
  for (const bool sliding : {false, true}) {
    const auto tiny = model(sliding);
    for (const std::string& kind : kinds()) {
      const auto one = session(tiny, kind);
      const Ids plain = run(*one, ask(prompt_)).output_ids;
      ASSERT_EQ(plain.size(), static_cast<size_t>(kNew));
      for (int64_t length = 1; length <= 6; ++length) {
        for (int64_t right = 0; right <= length; ++right) {
          const auto drafter = std::make_shared<KnownFuture>(joined(prompt_, plain), length, right);
          EXPECT_EQ(run(*one, ask(prompt_), drafter).output_ids, plain)
              << kind << (sliding ? ", sliding, " : ", ") << right << " of " << length;
          EXPECT_EQ(one->cache().seq_len(0), static_cast<int64_t>(prompt_.size()) + kNew - 1);
          if (kind == "dynamic") {
            EXPECT_EQ(drafter->rounds(), (kNew - 1 + right) / (right + 1));
          }
        }
      }
    }
  }
}

void expect_settled(const Session& session, const Generation& generation, const std::string& what) {
  Cache& cache = const_cast<Session&>(session).cache();
  for (size_t row = 0; row < generation.batch(); ++row) {
    const size_t tokens =
        generation.prompt_ids(row).size() + generation.result(row).output_ids.size();
    for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
      ASSERT_EQ(cache.layer(layer).seq_len(static_cast<int32_t>(row)),
                static_cast<int64_t>(tokens) - 1)
          << what << ", row " << row << ", layer " << layer;
    }
  }
}

// The model itself, a model near it and one that has nothing to do with it.
TEST_F(Case47, AfterEveryRoundBothCachesHoldTheSettledTokensOnEveryLayer) {
  for (const bool sliding : {false, true}) {
    const auto tiny = model(sliding);
    for (const float noise : {0.0f, 0.05f, 5.0f}) {
      for (const std::string& kind : kinds()) {
        const auto target = session(tiny, kind), draft = session(model(sliding, noise), kind);
        const std::vector<Ids> prompts = {prompt_, {1, 2, 3}, some_ids(30, 32, 7)};
        std::vector<Ids> plain;
        for (const Ids& prompt : prompts) plain.push_back(run(*target, ask(prompt)).output_ids);
        target->reset();
        GenerationOptions options;
        options.drafter = std::make_shared<AssistantModel>(*draft);
        Generation generation(*target, {ask(prompts[0]), ask(prompts[1]), ask(prompts[2])},
                              options);
        while (generation.step()) {
          if (generation.new_tokens() == 3) continue;  // no round yet, only prompts
          expect_settled(*target, generation, kind + " target");
          expect_settled(*draft, generation, kind + " draft");
        }
        for (size_t row = 0; row < prompts.size(); ++row)
          EXPECT_EQ(generation.result(row).output_ids, plain[row]) << kind << " " << row;
        EXPECT_GE(generation.drafted_tokens(), generation.accepted_tokens());
        if (noise == 0) {
          EXPECT_EQ(generation.drafted_tokens(), generation.accepted_tokens());
          EXPECT_GT(generation.accepted_tokens(), 80) << kind;
        }
      }
    }
  }
}

TEST_F(Case47, EndsProcessorsAndSeedsActAsWithoutGuesses) {
  const auto tiny = model(true);
  const auto target = session(tiny, "dynamic"), draft = session(model(true, 0.05f), "dynamic");
  std::vector<Request> requests(5, ask(prompt_));
  const Ids plain = run(*target, requests[0]).output_ids;
  requests[1].eos_token_ids = {plain[7], plain[12]};
  requests[2] = requests[1];
  requests[2].sampling.min_new_tokens = 11;
  requests[3].sampling.repetition_penalty = 1.4;
  requests[3].sampling.no_repeat_ngram_size = 2;
  requests[4].sampling.do_sample = true;
  requests[4].sampling.seed = 5;
  for (const Request& request : requests) {
    const Result expected = run(*target, request);
    draft->reset();
    const Result assisted = run(*target, request, std::make_shared<AssistantModel>(*draft));
    EXPECT_EQ(assisted.output_ids, expected.output_ids);
    EXPECT_EQ(assisted.finish_reason, expected.finish_reason);
    EXPECT_EQ(run(*target, request, std::make_shared<PromptLookup>()).output_ids,
              expected.output_ids);
  }
}

// Letters for ids, so that stop strings can fall into the middle of a round.
class Letters final : public TokenText {
 public:
  std::string push(int32_t id) override { return {static_cast<char>('A' + id)}; }
  std::string finish() override { return {}; }
};

TEST_F(Case47, AStopStringOrACancelInTheMiddleOfARoundEndsItThere) {
  const auto target = session(model(false), "dynamic");
  Request request = ask(prompt_);
  const Ids plain = run(*target, request).output_ids;
  for (size_t end = 1; end + 2 < 20; ++end) {
    request.stop_strings = {
        std::string{static_cast<char>('A' + plain[end]), static_cast<char>('A' + plain[end + 1])}};
    std::vector<std::vector<int32_t>> seen;
    std::vector<std::string> texts;
    for (const int64_t length : {0, 5}) {
      target->reset();
      GenerationOptions options;
      options.make_text = [](std::span<const int32_t> /*prompt*/) {
        return std::make_unique<Letters>();
      };
      seen.emplace_back();
      options.on_token = [&](const TokenEvent& event) {
        seen.back().push_back(event.id);
        return seen.back().size() < 15;
      };
      if (length > 0)
        options.drafter = std::make_shared<KnownFuture>(joined(prompt_, plain), length, length);
      Generation generation(*target, {request}, options);
      if (length > 0) generation.step(), generation.step();
      generation.run();
      texts.push_back(generation.result(0).text +
                      std::string(finish_reason_name(generation.result(0).finish_reason)));
      EXPECT_EQ(target->cache().seq_len(0),
                static_cast<int64_t>(prompt_.size() + generation.result(0).output_ids.size()) - 1);
    }
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_EQ(texts[0], texts[1]);
  }
}

TEST_F(Case47, WhatCannotWorkIsRefusedAtTheStart) {
  const auto target = session(model(false), "dynamic");
  TinyModel small(config(false));
  small.config["vocab_size"] = 24;
  small.tensors["model.embed_tokens.weight"] = TinyModel::random("embed", {24, 16});
  if (small.tensors.contains("lm_head.weight"))
    small.tensors["lm_head.weight"] = TinyModel::random("head", {24, 16});
  const TempFolder folder;
  small.write(folder.path());
  const auto draft = session(Model::load(folder.path(), DType::kF32, host_), "dynamic");
  const std::string text =
      error_text([&] { run(*target, ask(prompt_), std::make_shared<AssistantModel>(*draft)); });
  EXPECT_NE(text.find("24 ids"), std::string::npos) << text;
  EXPECT_NE(text.find("32"), std::string::npos) << text;
  EXPECT_EQ(target->cache().batch(), 0);
  EXPECT_NE(error_text([] {
              PromptLookup({0, 2});
            }).find("prompt_lookup_num_tokens is 0"),
            std::string::npos);
  EXPECT_NE(error_text([] {
              PromptLookup({3, 0});
            }).find("max_matching_ngram_size is 0"),
            std::string::npos);
  EXPECT_NE(error_text([&] {
              AssistantModel(*draft, {9, 8});
            }).find("num_assistant_tokens is 9"),
            std::string::npos);
}

TEST_F(Speculation, WithoutARollbackADraftModelWithWindowsGuessesLess) {
  const auto target = session(model(true), "dynamic");
  const Ids plain = run(*target, ask(prompt_)).output_ids;
  for (const int64_t rollback : {0, 2}) {
    SessionOptions options;
    options.rollback = rollback;
    Session draft(model(true), options, host_);
    GenerationOptions generation_options;
    generation_options.drafter = std::make_shared<AssistantModel>(draft);
    target->reset();
    Generation generation(*target, {ask(prompt_)}, generation_options);
    int64_t rounds = -1;  // the first step feeds the prompt
    while (generation.step()) ++rounds;
    EXPECT_EQ(generation.result(0).output_ids, plain);
    EXPECT_EQ(rounds + 1, (kNew - 1 + rollback + 1) / (rollback + 2));
  }
}

TEST_F(Speculation, ADraftModelWithLessRoomJustStopsGuessing) {
  Json shorter = config(false);
  shorter["max_position_embeddings"] = 20;
  TinyModel tiny(shorter);
  const TempFolder folder;
  tiny.write(folder.path());
  const auto target = session(model(false), "dynamic");
  const auto draft = session(Model::load(folder.path(), DType::kF32, host_), "dynamic");
  const Ids plain = run(*target, ask(prompt_)).output_ids;
  EXPECT_EQ(run(*target, ask(prompt_), std::make_shared<AssistantModel>(*draft)).output_ids, plain);
  EXPECT_EQ(draft->cache().seq_len(0), 20);
}

TEST_F(Speculation, WhenMemoryRunsOutARoundCanBeTriedAgain) {
  const auto tiny = model(false);
  FaultAllocator faults(host_);
  const auto plain = run(*session(tiny, "dynamic"), ask(some_ids(50, 32, 3))).output_ids;
  for (size_t fail_at = 0; fail_at < 80; ++fail_at) {
    Session target(tiny, {}, faults), draft(tiny, {}, faults);
    GenerationOptions options;
    options.drafter = std::make_shared<AssistantModel>(draft);
    Generation generation(target, {ask(some_ids(50, 32, 3))}, options);
    faults.arm(fail_at);
    int refusals = 0;
    for (bool more = true; more;) {
      try {
        more = generation.step();
      } catch (const OutOfMemory&) {
        ASSERT_LE(++refusals, 1);
      }
    }
    ASSERT_EQ(generation.result(0).output_ids, plain) << "call " << fail_at;
  }
}

Ids looked_up(const Ids& ids, int64_t most, const PromptLookupParams& params = {}) {
  std::vector<Draft> drafts = {{0, ids, most, {}, 0}};
  PromptLookup(params).propose(drafts);
  return drafts[0].tokens;
}

TEST(PromptLookup, ProposesWhatFollowedBefore) {
  EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 1, 2}, 2), (Ids{3, 4}));
  EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 1, 2}, 9), (Ids{3, 4, 5, 1, 2}));
  EXPECT_EQ(looked_up({9, 2, 7, 7, 1, 2, 3, 4, 5, 1, 2}, 2), (Ids{3, 4})) << "two tokens, not one";
  EXPECT_EQ(looked_up({8, 2, 7, 6, 1, 2}, 2), (Ids{7, 6})) << "one token where two are nowhere";
  EXPECT_EQ(looked_up({1, 2, 3, 1, 2, 4, 1, 2}, 2), (Ids{4, 1})) << "the latest whole guess";
  EXPECT_EQ(looked_up({1, 2, 3, 1, 2, 4, 1, 2}, 6), (Ids{3, 1, 2, 4, 1, 2}));
  EXPECT_EQ(looked_up({7, 7, 7, 7}, 9), (Ids{7, 7})) << "as much as there is";
  EXPECT_EQ(looked_up({1, 2, 3, 4}, 3), Ids{});
  EXPECT_EQ(looked_up({1}, 3), Ids{});
  EXPECT_EQ(looked_up({1, 2, 1, 2}, 0), Ids{});
  EXPECT_EQ(looked_up({1, 2, 3, 9, 2, 3, 8, 1, 2, 3}, 1, {10, 3}), Ids{9});
  EXPECT_EQ(looked_up({1, 2, 3, 9, 2, 3, 8, 1, 2, 3}, 1), Ids{8});
}

}  // namespace
}  // namespace larder::test
