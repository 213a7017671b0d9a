// Several samples of one prompt, which is computed once.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/engine_fixture.h"

namespace larder::test {
namespace {

class EngineSamples : public ::testing::Test {
 protected:
  EngineSamples() : fixture_("llama-micro") { fixture_.use_pool(4, 20); }
  EngineRequest ask(int64_t length, int64_t max_new_tokens, int32_t num_samples) {
    EngineRequest request = log_.watch(fixture_.ask(fixture_.prompt(length, 31), max_new_tokens));
    request.request.sampling.do_sample = true;
    request.request.sampling.seed = 5;
    request.num_samples = num_samples;
    return request;
  }
  Result alone(const EngineRequest& request, int32_t sample) {
    Request one = request.request;
    one.sampling.seed += static_cast<uint64_t>(sample);
    return fixture_.alone(one);
  }
  void expect_all_alone(int64_t id, const EngineRequest& request, const std::string& how) {
    for (int32_t i = 0; i < request.num_samples; ++i)
      expect_result(log_.of(id, i), alone(request, i), str(how, ", sample ", i));
  }
  int64_t layers() const { return static_cast<int64_t>(fixture_.spy->cache_layers().size()); }
  int64_t used(const Engine& engine) const {
    return (engine.stats().num_blocks - engine.stats().free_blocks) / layers();
  }

  EngineFixture fixture_;
  EngineLog log_;
};

TEST_F(EngineSamples, ThePromptIsComputedOnceAndEverySampleIsWhatItIsAlone) {
  for (const int64_t budget : {3, 64}) {
    fixture_.options.scheduler.max_tokens_per_step = budget;
    const EngineRequest request = ask(9, 7, 4);
    const auto engine = fixture_.engine();
    log_ = EngineLog();
    const int64_t id = engine->submit(request);
    EXPECT_EQ(engine->submit(ask(2, 1, 1)), id + 4) << "ids leave room for the samples";
    run_checked(*engine);
    expect_all_alone(id, request, str("budget ", budget));
    EXPECT_EQ(engine->stats().tokens_fed, 9 + 4 * 6 + 2);
    expect_all_free(*engine);
  }
  EXPECT_NE(alone(ask(9, 7, 4), 0).output_ids, alone(ask(9, 7, 4), 1).output_ids);
}

// 6 tokens in blocks of 4: one full block, one half full.
TEST_F(EngineSamples, Case31_OnlyFullBlocksStaySharedAndTheyAreFreeWhenTheLastOneEnds) {
  std::vector<size_t> lengths{2, 4, 6};
  do {
    EngineRequest request = ask(6, 8, 3);
    request.on_token = [&, inner = request.on_token](const EngineToken& event) {
      inner(event);
      const auto sample = static_cast<size_t>(event.sample);
      return log_.of(event.request, event.sample).tokens.size() < lengths[sample];
    };
    const auto engine = fixture_.engine();
    log_ = EngineLog();
    const int64_t id = engine->submit(request);
    engine->step();
    EXPECT_EQ(used(*engine), 2) << "all that the prompt left is shared";
    engine->step();
    EXPECT_EQ(used(*engine), 1 + 2) << "one has ended, the others have copies of the half full one";
    run_checked(*engine);
    for (int32_t i = 0; i < 3; ++i) {
      Ids expected = alone(request, i).output_ids;
      expected.resize(lengths[static_cast<size_t>(i)]);
      EXPECT_EQ(log_.of(id, i).tokens, expected);
      EXPECT_EQ(log_.of(id, i).ends, 1);
    }
    expect_all_free(*engine);
  } while (std::ranges::next_permutation(lengths).found);
}

TEST_F(EngineSamples, Case31_UnderPressureWithAnotherOfTheSamePromptBetween) {
  fixture_.use_pool(4, 7);
  fixture_.options.scheduler.safety_margin = 0;
  const EngineRequest request = ask(6, 14, 3);
  EngineRequest same = log_.watch(fixture_.ask(request.request.prompt_ids, 9));
  const auto engine = fixture_.engine();
  const int64_t id = engine->submit(request);
  engine->step();
  engine->step();
  const int64_t other = engine->submit(same);
  run_checked(*engine);
  EXPECT_GT(engine->stats().preemptions, 0);
  expect_all_alone(id, request, "under pressure");
  expect_result(log_.of(other), fixture_.alone(same.request), "of the same prompt");
  expect_all_free(*engine);
}

TEST_F(EngineSamples, MoreSamplesThanRowsRunInTurns) {
  fixture_.options.scheduler.max_running = 2;
  const EngineRequest request = ask(5, 6, 5);
  const auto engine = fixture_.engine();
  const int64_t id = engine->submit(request);
  run_checked(*engine);
  expect_all_alone(id, request, "two rows");
  expect_all_free(*engine);
}

TEST_F(EngineSamples, OneThatLeadsMayBePreemptedOrEndAtAnyTime) {
  fixture_.options.scheduler.max_tokens_per_step = 4;
  for (int at = 0; at < 8; ++at) {
    const EngineRequest request = ask(9, 5, 3);
    const auto engine = fixture_.engine();
    log_ = EngineLog();
    const int64_t id = engine->submit(request);
    for (int step = 0; step <= at; ++step) engine->step();
    engine->preempt(id);
    engine->check_invariants();
    run_checked(*engine);
    expect_all_alone(id, request, str("preempted after ", at));
    expect_all_free(*engine);
  }
  EngineRequest request = ask(9, 5, 3);
  request.on_token = [&, inner = request.on_token](const EngineToken& event) {
    if (event.sample == 0) throw 1;
    return inner(event);
  };
  const auto engine = fixture_.engine();
  log_ = EngineLog();
  const int64_t id = engine->submit(request);
  run_checked(*engine);
  EXPECT_EQ(log_.of(id, 0).result.finish_reason, FinishReason::kError);
  for (const int32_t i : {1, 2}) expect_result(log_.of(id, i), alone(request, i), "the others");
}

TEST_F(EngineSamples, CancelEndsThemAll) {
  fixture_.options.scheduler.max_tokens_per_step = 4;
  for (int steps = 0; steps < 5; ++steps) {
    const auto engine = fixture_.engine();
    log_ = EngineLog();
    const int64_t id = engine->submit(ask(9, 5, 3));
    for (int step = 0; step < steps; ++step) engine->step();
    EXPECT_TRUE(engine->cancel(id));
    for (int32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(log_.of(id, i).ends, 1);
      EXPECT_EQ(log_.of(id, i).result.finish_reason, FinishReason::kCancelled);
    }
    expect_all_free(*engine);
    EXPECT_FALSE(engine->step());
  }
}

}  // namespace
}  // namespace larder::test
