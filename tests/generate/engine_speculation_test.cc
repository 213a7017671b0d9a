// Prompt lookup inside the engine: fewer steps, the same tokens.
#include <gtest/gtest.h>

#include <stdexcept>

#include "larder/base/error.h"
#include "tests/support/engine_fixture.h"

namespace larder::test {
namespace {

// Models whose greedy text repeats itself soon.
class EngineSpeculation : public ::testing::TestWithParam<const char*> {
 protected:
  // A prompt in which everything has stood before.
  static Ids repeated(const Ids& ids, int times) {
    Ids all;
    for (int i = 0; i < times; ++i) all.insert(all.end(), ids.begin(), ids.end());
    return all;
  }
  static EngineRequest guessing(EngineLog& log, const Request& request) {
    EngineRequest asked = log.watch(request);
    asked.prompt_lookup.emplace();
    return asked;
  }
};
INSTANTIATE_TEST_SUITE_P(Models, EngineSpeculation,
                         ::testing::Values("llama-micro", "mistral-micro", "gemma2-micro"),
                         model_test_name);

TEST_P(EngineSpeculation, GivesTheSameTokensInFewerStepsOverEveryCache) {
  EngineFixture fixture(GetParam());
  std::vector<Request> requests;
  for (const int64_t length : {1, 3, 6, 9})
    requests.push_back(fixture.ask(repeated(fixture.prompt(length, 7), 3), 40));
  requests.back().sampling.do_sample = true;
  std::vector<Result> alone;
  for (const Request& request : requests) alone.push_back(fixture.alone(request));
  const std::vector<std::pair<std::string, std::string>> caches{
      {"dynamic", ""},
      {"static", ""},
      {"paged", pool_config(4, 80)},
      {"offloaded", ""},
  };
  for (const auto& [kind, config] : caches) {
    for (const int64_t budget : {1, 6, 512}) {
      fixture.options.session.cache_implementation = kind;
      fixture.options.session.cache_config = config;
      fixture.options.session.max_cache_len = 80;
      fixture.options.scheduler.max_tokens_per_step = budget;
      EngineLog log;
      const auto engine = fixture.engine();
      std::vector<int64_t> ids;
      for (const Request& request : requests) ids.push_back(engine->submit(guessing(log, request)));
      run_checked(*engine);
      for (size_t i = 0; i < ids.size(); ++i)
        expect_result(log.of(ids[i]), alone[i], str(kind, ", budget ", budget, ", request ", i));
      const EngineStats stats = engine->stats();
      EXPECT_EQ(stats.new_tokens, 160);
      EXPECT_LE(stats.accepted, stats.guessed);
      EXPECT_TRUE(budget > 1 || stats.guessed == 0);  // no room for any
      EXPECT_TRUE(budget < 512 || stats.accepted > 2) << kind << " " << stats.accepted;
      expect_all_free(*engine);
    }
  }
}

// Codes of a pool replace exact tokens at fixed places: a guess never goes past one.
TEST_P(EngineSpeculation, OverAPoolOfCodesTheBitsAreThoseOfTheRequestAlone) {
  EngineFixture fixture(GetParam());
  fixture.options.session.cache_implementation = "paged";
  fixture.options.session.cache_config =
      R"({"num_blocks": 12, "quantized": {"nbits": 8, "residual_length": 8}})";
  const Request request = fixture.ask(repeated(fixture.prompt(9, 7), 6), 150);
  EngineLog log;
  const auto plain = fixture.engine();
  const int64_t without = plain->submit(log.watch(request));
  plain->run();
  const auto engine = fixture.engine();
  EngineLog guessed;
  const int64_t with = engine->submit(guessing(guessed, request));
  run_checked(*engine);
  expect_result(guessed.of(with), log.of(without).result, "codes");
  EXPECT_GT(engine->stats().accepted, 2);
  EXPECT_LT(engine->stats().steps, plain->stats().steps);
}

class EngineSpeculationEnds : public ::testing::Test {
 protected:
  EngineFixture fixture_{"llama-micro"};
  Request request_ = fixture_.ask(Ids(12, 5), 40);
};

TEST_F(EngineSpeculationEnds, AnEndTokenOrACancelInTheMiddleOfARoundEndsTheRequestThere) {
  fixture_.use_pool(4, 32);
  const Ids whole = fixture_.alone(request_).output_ids;
  for (size_t at = 1; at < whole.size(); ++at) {
    Request ends = request_;
    ends.eos_token_ids = {whole[at]};
    EngineLog log;
    const auto engine = fixture_.engine();
    EngineRequest stopped = log.watch(ends);
    stopped.prompt_lookup.emplace();
    EngineRequest cancelled = log.watch(request_);
    cancelled.prompt_lookup.emplace();
    int64_t id = -1;
    int32_t shown = 0;
    cancelled.on_token = [&](const EngineToken&) {
      if (++shown == static_cast<int32_t>(at)) engine->cancel(id);
      return true;
    };
    const int64_t first = engine->submit(stopped);
    id = engine->submit(cancelled);
    run_checked(*engine);
    expect_result(log.of(first), fixture_.alone(ends), str("end at ", at));
    EXPECT_EQ(log.of(id).result.output_ids,
              Ids(whole.begin(), whole.begin() + static_cast<int64_t>(at)));
    EXPECT_EQ(log.of(id).result.finish_reason, FinishReason::kCancelled);
    expect_all_free(*engine);
  }
}

TEST_F(EngineSpeculationEnds, WhereThePoolHasNoBlockForGuessesNobodyIsPreemptedForThem) {
  fixture_.use_pool(1, 51);  // what the request needs, and no block more
  EngineLog log;
  const auto engine = fixture_.engine();
  EngineRequest request = log.watch(request_);
  request.prompt_lookup = PromptLookupParams{40, 2};
  const int64_t id = engine->submit(request);
  run_checked(*engine);
  expect_result(log.of(id), fixture_.alone(request_), "");
  EXPECT_EQ(engine->stats().preemptions, 0);
}

TEST_F(EngineSpeculationEnds, SamplesOfOnePromptGuessEachForItself) {
  fixture_.use_pool(4, 64);
  fixture_.options.prefix_cache = true;
  request_.sampling.do_sample = true;
  request_.sampling.temperature = 0.3F;
  EngineLog log;
  EngineRequest request = log.watch(request_);
  request.num_samples = 3;
  request.prompt_lookup.emplace();
  const auto engine = fixture_.engine();
  const int64_t id = engine->submit(request);
  run_checked(*engine);
  for (int32_t i = 0; i < 3; ++i) {
    Request own = request_;
    own.sampling.seed += static_cast<uint64_t>(i);
    expect_result(log.of(id, i), fixture_.alone(own), str("sample ", i));
  }
  EXPECT_GT(engine->stats().accepted, 10);
}

TEST(EngineSpeculationRefusals, SayWhy) {
  EngineFixture recurrent("recurrentgemma-micro");
  EngineRequest request;
  request.request = recurrent.ask({1, 2}, 4);
  request.prompt_lookup.emplace();
  EXPECT_THROW(recurrent.engine()->submit(request), Error);
  EngineFixture llama("llama-micro");
  request.prompt_lookup = PromptLookupParams{0, 2};
  EXPECT_THROW(llama.engine()->submit(request), Error);
}

}  // namespace
}  // namespace larder::test
