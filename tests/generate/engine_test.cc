// What an engine's requests can meet: no room, an end of their own or of another kind, each other.
#include "larder/generate/engine.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "larder/base/error.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() : fixture_("llama-micro") {}
  Request ask(int64_t length, int64_t max_new_tokens, uint64_t seed = 1) {
    return fixture_.ask(fixture_.prompt(length, seed), max_new_tokens);
  }

  EngineFixture fixture_;
  EngineLog log_;
};

// Pool of 6 blocks of 4; three requests of 5 prompt tokens that generate 10 each.
TEST_F(EngineTest, Case27_WhenThePoolIsFullTheLatestIsComputedAgain) {
  fixture_.use_pool(4, 6);
  fixture_.options.scheduler.safety_margin = 0;
  const auto engine = fixture_.engine();
  std::vector<int64_t> ids;
  for (uint64_t i = 0; i < 3; ++i) ids.push_back(engine->submit(log_.watch(ask(5, 10, i))));
  run_checked(*engine);
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->stats().no_room, 0);
  for (uint64_t i = 0; i < 3; ++i)
    expect_result(log_.of(ids[i]), fixture_.alone(ask(5, 10, i)), str("request ", i));
  EXPECT_EQ(fixture_.spy->different(), 0);
  expect_all_free(*engine);
}

TEST_F(EngineTest, Case27_TheBlocksOfAPreemptedRowAreFree) {
  fixture_.use_pool(4, 20);
  const auto engine = fixture_.engine();
  const int64_t id = engine->submit(log_.watch(ask(9, 10)));
  engine->step();
  EXPECT_LT(engine->stats().free_blocks, engine->stats().num_blocks);
  EXPECT_TRUE(engine->preempt(id));
  EXPECT_EQ(engine->stats().free_blocks, engine->stats().num_blocks);
  EXPECT_EQ(engine->stats().preempted, 1);
  EXPECT_FALSE(engine->preempt(id)) << "it has no row";
  EXPECT_FALSE(engine->preempt(id + 1));
  run_checked(*engine);
  expect_result(log_.of(id), fixture_.alone(ask(9, 10)), "preempted");
}

TEST_F(EngineTest, Case27_WhenMemoryRunsOutRowsGiveWayToo) {
  std::vector<Result> expected;
  for (uint64_t i = 0; i < 4; ++i) expected.push_back(fixture_.alone(ask(40, 40, i)));
  HostAllocator host;
  TrackingAllocator one_row(host);
  {
    Engine engine(fixture_.spy, fixture_.options, one_row);
    engine.submit(log_.watch(ask(40, 40)));
    engine.run();
  }
  const size_t peak = one_row.total().peak;
  EngineLog log;
  BudgetAllocator budget(host, peak * 2);
  Engine engine(fixture_.spy, fixture_.options, budget);
  std::vector<int64_t> ids;
  for (uint64_t i = 0; i < 4; ++i) ids.push_back(engine.submit(log.watch(ask(40, 40, i))));
  run_checked(engine);
  EXPECT_GT(engine.stats().no_room, 0);
  for (size_t i = 0; i < 4; ++i) expect_result(log.of(ids[i]), expected[i], str("request ", i));
}

TEST_F(EngineTest, APromptForWhoseStepThereIsNoMemoryIsFedInSmallerOnes) {
  HostAllocator host;
  TrackingAllocator small(host);
  {
    EngineOptions options = fixture_.options;
    options.scheduler.max_tokens_per_step = 10;
    Engine engine(fixture_.spy, options, small);
    engine.submit(log_.watch(ask(100, 4)));
    engine.run();
  }
  BudgetAllocator budget(host, small.total().peak);
  EngineLog log;
  Engine engine(fixture_.spy, fixture_.options, budget);
  const int64_t id = engine.submit(log.watch(ask(100, 4)));
  run_checked(engine);
  EXPECT_GT(engine.stats().no_room, 0);
  expect_result(log.of(id), fixture_.alone(ask(100, 4)), "");
}

TEST_F(EngineTest, Case28_CallbacksOfTwoMayCancelEachOther) {
  const auto engine = fixture_.engine();
  int64_t ids[2] = {};
  for (int64_t& id : ids) {
    EngineRequest request = log_.watch(ask(5, 6));
    request.on_finish = [&, inner = request.on_finish](const EngineFinish& finish) {
      inner(finish);
      for (const int64_t other : ids) engine->cancel(other);
    };
    request.on_token = [&, inner = request.on_token](const EngineToken& event) {
      inner(event);
      if (log_.of(event.request).tokens.size() < 3) return true;
      for (const int64_t other : ids) EXPECT_TRUE(engine->cancel(other));
      return true;
    };
    id = engine->submit(request);
  }
  run_checked(*engine);
  for (const int64_t id : ids) {
    EXPECT_EQ(log_.of(id).ends, 1);
    EXPECT_EQ(log_.of(id).result.finish_reason, FinishReason::kCancelled);
  }
  expect_all_free(*engine);
}

TEST_F(EngineTest, WhenAnyAllocationFailsOnceNothingIsLost) {
  const Result first = fixture_.alone(ask(20, 8)), second = fixture_.alone(ask(6, 8));
  FaultAllocator faults(EngineFixture::host());
  for (size_t fail_at = 0; fail_at < 200; ++fail_at) {
    Engine engine(fixture_.spy, fixture_.options, faults);
    EngineLog log;
    EngineRequest twice = log.watch(ask(6, 8));
    twice.num_samples = 2;
    const int64_t one = engine.submit(log.watch(ask(20, 8))), two = engine.submit(twice);
    faults.arm(fail_at);
    run_checked(engine);
    expect_result(log.of(one), first, str("call ", fail_at));
    for (const int32_t sample : {0, 1})
      expect_result(log.of(two, sample), second, str("call ", fail_at));
    if (faults.calls() <= fail_at) return;
  }
  FAIL() << "fewer than 200 allocations were expected";
}

TEST_F(EngineTest, Case29_WhatCanNeverFitIsRefusedWithBothNumbersAndTheRestRuns) {
  fixture_.use_pool(4, 8);
  fixture_.options.scheduler.max_tokens_per_step = 7;
  const auto engine = fixture_.engine();
  const int64_t layers = fixture_.spy->info().num_parameters > 0
                             ? static_cast<int64_t>(fixture_.spy->cache_layers().size())
                             : 0;
  try {
    engine->submit(log_.watch(ask(40, 1)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNoRoom);
    const std::string text = error.what();
    EXPECT_NE(text.find(str("need ", 10 * layers, " blocks")), std::string::npos) << text;
    EXPECT_NE(text.find(str("the pool has ", 8 * layers)), std::string::npos) << text;
  }
  EXPECT_NE(error_of([&] { engine->submit(log_.watch(ask(20, 14))); }), "");
  std::vector<int64_t> ids{engine->submit(log_.watch(ask(20, 13)))};  // exactly all blocks
  for (uint64_t i = 0; i < 3; ++i) ids.push_back(engine->submit(log_.watch(ask(5, 4, i))));
  run_checked(*engine);
  expect_result(log_.of(ids[0]), fixture_.alone(ask(20, 13)), "all blocks, longer than the budget");
  for (uint64_t i = 0; i < 3; ++i)
    expect_result(log_.of(ids[i + 1]), fixture_.alone(ask(5, 4, i)), "behind it");
  expect_all_free(*engine);
}

TEST_F(EngineTest, Case29_WhatMakesNoSenseIsRefusedBeforeAnythingHappens) {
  const auto engine = fixture_.engine();
  const auto refusal = [&](const EngineRequest& request) {
    const std::string text = error_of([&] { engine->submit(request); });
    EXPECT_EQ(engine->stats().submitted, 0);
    return text;
  };
  const int64_t longest = fixture_.spy->info().max_position_embeddings;
  EXPECT_NE(refusal({ask(longest + 1, 1)}).find("more than max_position_embeddings"),
            std::string::npos);
  EXPECT_NE(refusal({ask(3, -1)}).find("max_new_tokens -1"), std::string::npos);
  EXPECT_NE(refusal({fixture_.ask({-1}, 3)}).find("prompt id -1"), std::string::npos);
  Request cached = ask(3, 1);
  cached.cached_tokens = 1;
  EXPECT_NE(refusal({cached}).find("cached_tokens 1"), std::string::npos);
  EngineRequest none{ask(3, 1)};
  none.num_samples = 0;
  EXPECT_NE(refusal(none).find("num_samples 0"), std::string::npos);
  EXPECT_FALSE(engine->step());
  EngineFixture t5("t5-micro");
  EXPECT_NE(error_of([&] { t5.engine(); }).find("use Generation"), std::string::npos);
}

TEST_F(EngineTest, Case28_CancelledWhileWaitingInThePromptDecodingTwiceAndUnknown) {
  fixture_.use_pool(4, 40);
  fixture_.options.scheduler.max_tokens_per_step = 4;
  const Result beside = fixture_.alone(ask(3, 20, 9)), whole = fixture_.alone(ask(9, 6));
  for (int at = 0; at < 14; ++at) {
    const auto engine = fixture_.engine();
    EngineLog log;
    const int64_t other = engine->submit(log.watch(ask(3, 20, 9)));
    const int64_t id = engine->submit(log.watch(ask(9, 6)));
    for (int step = 0; step < at; ++step) engine->step();
    const bool running = log.of(id).ends == 0;
    EXPECT_EQ(engine->cancel(id), running);
    EXPECT_FALSE(engine->cancel(id));
    EXPECT_FALSE(engine->cancel(id + 1));
    EXPECT_FALSE(engine->cancel(-1));
    engine->check_invariants();
    run_checked(*engine);
    expect_result(log.of(other), beside, str("beside a request cancelled after ", at));
    EXPECT_EQ(log.of(id).ends, 1);
    EXPECT_EQ(finish_reason_name(log.of(id).result.finish_reason),
              running ? "cancelled" : "length");
    EXPECT_TRUE(std::ranges::equal(log.of(id).tokens,
                                   std::span(whole.output_ids).first(log.of(id).tokens.size())));
    expect_all_free(*engine);
  }
}

TEST_F(EngineTest, Case28_ACallbackThatThrowsEndsItsOwnRequestAlone) {
  fixture_.use_pool(4, 40);
  const Result beside = fixture_.alone(ask(3, 8, 9));
  for (size_t at = 1; at <= 5; ++at) {
    const auto engine = fixture_.engine();
    EngineLog log;
    EngineRequest bad = log.watch(ask(5, 5));
    bad.on_token = [&, inner = bad.on_token](const EngineToken& event) {
      const bool more = inner(event);
      if (log.of(event.request).tokens.size() == at) throw std::runtime_error("disconnected");
      return more;
    };
    bad.on_finish = [inner = bad.on_finish](const EngineFinish& event) {
      inner(event);
      throw std::runtime_error("nobody listens");
    };
    const int64_t first = engine->submit(bad), other = engine->submit(log.watch(ask(3, 8, 9)));
    run_checked(*engine);
    expect_result(log.of(other), beside, "beside it");
    EXPECT_EQ(log.of(first).ends, 1);
    EXPECT_EQ(finish_reason_name(log.of(first).result.finish_reason), "error");
    EXPECT_EQ(log.of(first).error, "disconnected");
    EXPECT_EQ(log.of(first).result.output_ids.size(), at);
    expect_all_free(*engine);
  }
}

TEST_F(EngineTest, Case28_CallbacksMayCancelAndSubmit) {
  const auto engine = fixture_.engine();
  int64_t victim = -1, follow_up = -1;
  const Result expected = fixture_.alone(ask(4, 3, 7));
  EngineRequest request = log_.watch(ask(5, 6));
  request.on_token = [&, inner = request.on_token](const EngineToken& event) {
    inner(event);
    const size_t count = log_.of(event.request).tokens.size();
    if (count == 2) engine->cancel(victim);
    if (count == 3) follow_up = engine->submit(log_.watch(ask(4, 3, 7)));
    if (count == 4) engine->cancel(event.request);
    EXPECT_NE(error_of([&] { engine->step(); }), "") << "a step within a step";
    return true;
  };
  const int64_t first = engine->submit(request);
  victim = engine->submit(log_.watch(ask(3, 30)));
  run_checked(*engine);
  EXPECT_EQ(log_.of(first).result.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(log_.of(first).tokens.size(), 4u);
  EXPECT_EQ(log_.of(victim).result.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(log_.of(victim).tokens.size(), 1u) << "no token in the step in which it is cancelled";
  expect_result(log_.of(follow_up), expected, "submitted by a callback");
}

TEST_F(EngineTest, ACallbackThatGivesFalseCancels) {
  const auto engine = fixture_.engine();
  EngineRequest request = log_.watch(ask(5, 6));
  request.on_token = [](const EngineToken&) { return false; };
  const int64_t id = engine->submit(request);
  run_checked(*engine);
  EXPECT_EQ(log_.of(id).result.output_ids.size(), 1u);
  EXPECT_EQ(log_.of(id).result.finish_reason, FinishReason::kCancelled);
}

// A checkpoint whose token 31 has no embedding: logits behind it are NaN.
TEST_F(EngineTest, Case28_LogitsThatAreNoneEndTheirOwnRequestAlone) {
  TempFolder folder;
  TinyModel tiny;
  const std::vector<float> nothing(16, std::numeric_limits<float>::quiet_NaN());
  TinyTensor& embedding = tiny.tensors.at("model.embed_tokens.weight");
  std::memcpy(embedding.bytes.data() + size_t{31} * 16 * sizeof(float), nothing.data(),
              nothing.size() * sizeof(float));
  tiny.write(folder.path());
  EngineFixture fixture(Model::load(folder.path(), DType::kF32, EngineFixture::host()));
  fixture.use_pool(4, 40);
  Request good = fixture.ask({4, 5, 6}, 9);
  good.sampling.bad_words_ids = {{31}};
  const Result expected = fixture.alone(good);
  const auto engine = fixture.engine();
  const int64_t first = engine->submit(log_.watch(good)),
                bad = engine->submit(log_.watch(fixture.ask({4, 31}, 9))),
                last = engine->submit(log_.watch(good));
  run_checked(*engine);
  expect_result(log_.of(first), expected, "before it");
  expect_result(log_.of(last), expected, "behind it");
  EXPECT_EQ(finish_reason_name(log_.of(bad).result.finish_reason), "error");
  EXPECT_NE(log_.of(bad).error.find("NaN"), std::string::npos) << log_.of(bad).error;
  // Its rows are used again, and nothing of what was in them is seen.
  const int64_t again = engine->submit(log_.watch(good));
  run_checked(*engine);
  expect_result(log_.of(again), expected, "in a row that held NaN");
  expect_all_free(*engine);
}

TEST_F(EngineTest, ADeadlineEndsARequestInAnyState) {
  EngineClock::time_point now{};
  fixture_.options.now = [&now] { return now; };
  fixture_.options.scheduler.max_running = 1;
  const auto engine = fixture_.engine();
  EngineRequest running = log_.watch(ask(5, 20)), waiting = log_.watch(ask(4, 5));
  running.deadline = now + std::chrono::seconds(3);
  waiting.deadline = now + std::chrono::seconds(2);
  const int64_t first = engine->submit(running), second = engine->submit(waiting);
  for (int step = 0; step < 5; ++step, now += std::chrono::seconds(1)) engine->step();
  EXPECT_EQ(finish_reason_name(log_.of(first).result.finish_reason), "deadline");
  EXPECT_EQ(log_.of(first).tokens.size(), 3u);
  EXPECT_EQ(finish_reason_name(log_.of(second).result.finish_reason), "deadline");
  EXPECT_EQ(log_.of(second).tokens.size(), 0u);
  expect_all_free(*engine);
}

TEST_F(EngineTest, NoNewTokensMeansNone) {
  const auto engine = fixture_.engine();
  EngineRequest request = log_.watch(ask(3, 0));
  request.num_samples = 2;
  const int64_t id = engine->submit(request);
  EXPECT_FALSE(engine->step());
  for (const int32_t sample : {0, 1}) {
    EXPECT_EQ(log_.of(id, sample).ends, 1);
    EXPECT_EQ(log_.of(id, sample).result.finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(engine->stats().tokens_fed, 0);
}

TEST_F(EngineTest, Case42_EndTokensEndARequestAndTheOthersGoOn) {
  const auto engine = fixture_.engine();
  const Ids free = fixture_.alone(ask(5, 6)).output_ids;
  Request stops = ask(5, 6);
  stops.eos_token_ids = {1, free[0]};
  const int64_t first = engine->submit(log_.watch(stops)),
                other = engine->submit(log_.watch(ask(7, 6)));
  run_checked(*engine);
  EXPECT_EQ(log_.of(first).tokens, Ids{free[0]});
  EXPECT_EQ(log_.of(first).result.finish_reason, FinishReason::kStop);
  expect_result(log_.of(other), fixture_.alone(ask(7, 6)), "the other");
}

}  // namespace
}  // namespace larder::test
