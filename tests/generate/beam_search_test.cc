#include "larder/generate/beam_search.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/logits_run.h"
#include "tests/support/sanitized.h"

namespace larder::test {
namespace {

class BeamSearches : public ::testing::Test {
 protected:
  std::shared_ptr<const Model> model(const std::string& name) {
    return Model::load(toy_folder(name), DType::kF32, host_);
  }
  std::unique_ptr<Session> session(const std::string& name, const std::string& cache = "dynamic",
                                   const std::string& config = {}) {
    SessionOptions options{cache, std::nullopt, 256, AttentionKind::kFused, 1, {}, config};
    return std::make_unique<Session>(model(name), options, host_);
  }
  static Request ask(Ids prompt, int64_t n) { return {std::move(prompt), n, {}, {}, {}}; }
  static std::vector<BeamResult> run(Session& session, const Request& request,
                                     const BeamParams& params) {
    session.reset();
    BeamSearch search(session, {request}, params);
    search.run();
    const auto results = search.results(0);
    return {results.begin(), results.end()};
  }

  HostAllocator host_;
  const Ids prompt_ = {1, 1951, 637, 55, 17, 202, 413, 308, 15};
};

// The log-probabilities behind `ids`, in a cache that has seen nothing else: the prompt at once,
// then token by token.
std::vector<float> fresh_log_probs(Session& session, std::span<const int32_t> ids, size_t prompt) {
  session.reset();
  StepPlan plan;
  TensorView logits;
  for (size_t at = 0; at < ids.size();) {
    const size_t count = at == 0 ? prompt : 1;
    plan.clear();
    plan.add(0, ids.subspan(at, count), static_cast<int64_t>(at), LogitsOf::kLast);
    logits = session.forward(plan.step(), plan.ids(), plan.logit_rows());
    at += count;
  }
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  std::vector<float> scores(logits.as<float>(), logits.as<float>() + vocab);
  SamplerScratch scratch(vocab);
  Sampler({}, {vocab, prompt, {}, 0}, scratch).to_log_probs(scores, ids);
  return scores;
}

std::vector<BeamScorer::Sequence> by_recomputation(Session& session, const Request& request,
                                                   const BeamParams& params) {
  const auto vocab = static_cast<size_t>(session.model().info().vocab_size);
  BeamScorer scorer(params, vocab, request.prompt_ids, request.eos_token_ids,
                    request.max_new_tokens);
  while (!scorer.done()) {
    for (size_t beam = 0; beam < scorer.num_beams(); ++beam) {
      scorer.consider(beam, fresh_log_probs(session, scorer.ids(beam), request.prompt_ids.size()));
    }
    scorer.advance();
  }
  return scorer.best();
}

void expect_same(std::span<const BeamResult> found,
                 const std::vector<BeamScorer::Sequence>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].output_ids, expected[i].ids) << what << " " << i;
    EXPECT_EQ(found[i].score, expected[i].score) << what << " " << i;
  }
}

// A cache kind and its settings.
struct Kind {
  std::string name, config;
};

// All kinds; the quantized ones with residuals so short that beams part across flushes.
std::vector<Kind> kinds() {
  std::vector<Kind> kinds;
  for (const std::string& name : CacheRegistry().names()) {
    kinds.push_back({name, {}});
    if (name != "quantized") continue;
    for (const char* backend : {"quanto", "hqq"})
      kinds.push_back({name, str("{\"backend\": \"", backend,
                                 "\", \"nbits\": 4, \"q_group_size\": 32, "
                                 "\"residual_length\": 7}")});
  }
  return kinds;
}

TEST_F(BeamSearches, Case06_EveryCacheFollowsTheBeamsAsIfTheirTokensWereFedAnew) {
  const BeamParams params{3, 1.0, EarlyStopping::kNever, 3};
  size_t model = 0;
  for (const char* name : {"toy-llama", "toy-mistral", "toy-gemma2"}) {
    size_t turn = model++;  // so that a sanitizer takes every kind once
    for (const Kind& kind : kinds()) {
      if (kSanitized && ++turn % 3 != 0) continue;
      const auto one = session(name, kind.name, kind.config);
      Request request = ask(some_ids(20, 2048, 5), kSanitized ? 8 : 20);
      request.eos_token_ids = {15, 13};
      const auto expected = by_recomputation(*one, request, params);
      expect_same(run(*one, request, params), expected, str(name, " ", kind.name, kind.config));
    }
  }
}

TEST_F(BeamSearches, Case15_PromptsOfABatchFindWhatTheyFindAlone) {
  const BeamParams params{3, 0.6, EarlyStopping::kTrue, 3};
  std::vector<Request> requests = {ask(some_ids(3, 2048, 1), 12), ask(some_ids(40, 2048, 2), 5),
                                   ask(some_ids(17, 2048, 3), 0), ask(some_ids(9, 2048, 4), 9)};
  for (Request& request : requests) request.eos_token_ids = {15, 308};
  for (const char* cache : {"dynamic", "static"}) {
    const auto one = session("toy-llama", cache);
    for (const int32_t chunk : {512, 7, 1}) {
      one->reset();
      GenerationOptions options;
      options.prefill_chunk = chunk;
      BeamSearch batch(*one, requests, params, options);
      batch.run();
      EXPECT_EQ(batch.prompt_tokens_fed(), 52);
      const auto alone = session("toy-llama", cache);
      for (size_t r = 0; r < requests.size(); ++r) {
        const auto expected = run(*alone, requests[r], params);
        ASSERT_EQ(batch.results(r).size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(batch.results(r)[i].output_ids, expected[i].output_ids);
          EXPECT_EQ(batch.results(r)[i].score, expected[i].score);
        }
      }
    }
  }
}

TEST_F(BeamSearches, OneBeamIsGreedySearch) {
  const auto one = session("toy-llama");
  const Ids greedy = generate(*one, ask(prompt_, 12)).output_ids;
  const auto found = run(*one, ask(prompt_, 12), {});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].output_ids, greedy);
  EXPECT_EQ(found[0].finish_reason, FinishReason::kLength);
}

TEST_F(BeamSearches, ProcessorsActOnTheLogProbabilities) {
  const auto one = session("toy-llama");
  const BeamParams params{3, 1.0, EarlyStopping::kFalse, 1};
  Request request = ask(prompt_, 16);
  const Ids free = run(*one, request, params)[0].output_ids;
  request.eos_token_ids = {free[2]};
  EXPECT_LE(run(*one, request, params)[0].output_ids.size(), 3u);
  EXPECT_EQ(run(*one, request, params)[0].finish_reason, FinishReason::kStop);
  request.sampling.min_new_tokens = 8;
  EXPECT_GE(run(*one, request, params)[0].output_ids.size(), 8u);
  request.sampling.bad_words_ids = {{free[0]}};
  EXPECT_NE(run(*one, request, params)[0].output_ids[0], free[0]);
}

TEST_F(BeamSearches, Case45_WhatMakesNoSenseIsRefusedBeforeAnythingRuns) {
  const auto one = session("toy-llama");
  const auto refusal = [&](const Request& request, const BeamParams& params) {
    std::string text = error_of([&] { BeamSearch(*one, {request}, params); });
    EXPECT_EQ(one->cache().batch(), 0);
    return text;
  };
  const BeamParams two{2, 1.0, EarlyStopping::kFalse, 2};
  EXPECT_NE(refusal(ask(prompt_, 4), {2, 1.0, EarlyStopping::kFalse, 3})
                .find("num_return_sequences is 3"),
            std::string::npos);
  EXPECT_NE(refusal(ask(prompt_, -1), two).find("max_new_tokens -1"), std::string::npos);
  Request drawn = ask(prompt_, 4);
  drawn.sampling.do_sample = true;
  EXPECT_NE(refusal(drawn, two).find("do_sample and num_beams exclude each other"),
            std::string::npos);
  EXPECT_NE(error_of([&] { BeamSearch(*one, {}, two); }).find("batch of 0"), std::string::npos);
  const auto none = run(*one, ask(prompt_, 0), two);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_TRUE(none[0].output_ids.empty());
  EXPECT_EQ(one->cache().batch(), 0) << "no forward is needed";
}

TEST_F(BeamSearches, SettingsThatForbidEveryTokenAreAnErrorOfThatStep) {
  const auto one = session("toy-llama");
  Request request = ask(prompt_, 4);
  for (int32_t id = 0; id < 2048; ++id) request.sampling.bad_words_ids.push_back({id});
  BeamSearch search(*one, {request}, {2, 1.0, EarlyStopping::kFalse, 2});
  EXPECT_NE(error_of([&] { search.step(); }).find("forbid every token"), std::string::npos);
  EXPECT_EQ(one->cache().seq_len(0), 0);
}

TEST_F(BeamSearches, AnInterruptGivesWhatWasFoundSoFar) {
  const auto one = session("toy-llama");
  int asked = 0;
  GenerationOptions options;
  options.interrupted = [&asked] { return ++asked > 4; };
  BeamSearch search(*one, {ask(prompt_, 50)}, {2, 1.0, EarlyStopping::kFalse, 2}, options);
  search.run();
  ASSERT_EQ(search.results(0).size(), 2u);
  EXPECT_EQ(search.results(0)[0].output_ids.size(), 4u);
  EXPECT_EQ(search.results(0)[0].finish_reason, FinishReason::kCancelled);
}

TEST_F(BeamSearches, WhenMemoryRunsOutAStepCanBeTriedAgain) {
  const auto toy = model("toy-llama");
  const BeamParams params{3, 1.0, EarlyStopping::kFalse, 1};
  const Request request = ask(some_ids(60, 2048, 5), 8);
  Ids expected;
  FaultAllocator faults(host_);
  for (size_t fail_at = 0; fail_at < 200; ++fail_at) {
    Session one(toy, {}, faults);
    BeamSearch search(one, {request}, params);
    if (fail_at > 0) faults.arm(fail_at - 1);
    int refusals = 0;
    for (bool more = true; more;) {
      try {
        more = search.step();
      } catch (const OutOfMemory&) {
        ASSERT_EQ(++refusals, 1);
      }
    }
    if (fail_at == 0) expected = search.results(0)[0].output_ids;
    EXPECT_EQ(search.results(0)[0].output_ids, expected) << "call " << fail_at;
    if (fail_at > 0 && refusals == 0) return;
  }
  FAIL() << "a search with fewer than 200 allocations was expected";
}

}  // namespace
}  // namespace larder::test
