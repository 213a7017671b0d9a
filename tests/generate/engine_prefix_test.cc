// Engines that keep the blocks of prompts for requests that begin alike.
#include <gtest/gtest.h>

#include <functional>

#include "larder/base/error.h"
#include "tests/support/engine_fixture.h"

namespace larder::test {
namespace {

class EnginePrefixes : public ::testing::TestWithParam<const char*> {
 protected:
  EnginePrefixes() : fixture_(GetParam()) {
    fixture_.use_pool(4, 60);
    fixture_.options.prefix_cache = true;
  }
  // `count` requests of one beginning and a few tokens of their own.
  std::vector<Request> alike(int64_t shared, int count) const {
    std::vector<Request> requests;
    const Ids beginning = fixture_.prompt(shared, 1);
    for (int i = 0; i < count; ++i) {
      Ids prompt = beginning;
      const Ids own = fixture_.prompt(5, 100 + static_cast<uint64_t>(i));
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back(fixture_.ask(prompt, 6));
    }
    return requests;
  }
  void expect_alone(const std::vector<Request>& requests, const std::vector<int64_t>& ids) {
    for (size_t i = 0; i < ids.size(); ++i)
      expect_result(log_.of(ids[i]), fixture_.alone(requests[i]), str("request ", i));
  }
  // A request of 21 prompt and 10 new tokens that loses its row once, after each number of steps.
  using Look = std::function<void(const Engine&)>;
  void preempt_after_every_step(const Look& when_preempted, const Look& at_the_end) {
    const Request request = fixture_.ask(fixture_.prompt(21, 9), 10);
    const Result expected = fixture_.alone(request);
    for (int at = 1; at < 10; ++at) {
      const auto engine = fixture_.engine();
      const int64_t id = engine->submit(log_.watch(request));
      for (int i = 0; i < at; ++i) engine->step();
      ASSERT_TRUE(engine->preempt(id));
      when_preempted(*engine);
      run_checked(*engine);
      expect_result(log_.of(id), expected, str("preempted after ", at));
      at_the_end(*engine);
      log_ = {};
    }
  }

  EngineFixture fixture_;
  EngineLog log_;
};
INSTANTIATE_TEST_SUITE_P(Models, EnginePrefixes,
                         ::testing::Values("llama-micro", "mistral-micro", "gemma2-micro"),
                         model_test_name);

TEST_P(EnginePrefixes, APromptThatManyShareIsComputedOnce) {
  const std::vector<Request> requests = alike(40, 8);
  fixture_.options.scheduler.max_tokens_per_step = 16;
  const auto engine = fixture_.engine();
  std::vector<int64_t> ids;
  for (const Request& request : requests) ids.push_back(engine->submit(log_.watch(request)));
  run_checked(*engine);
  expect_alone(requests, ids);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prefixes.hit_tokens, 7 * 40) << "they waited for the first one";
  EXPECT_EQ(stats.tokens_fed, 40 + 8 * (5 + 6 - 1));
  expect_all_free(*engine);
}

// By the pool's own count, when all sixteen have their first token: one prompt and what is their
// own.
TEST(EnginePrefixesMemory, OfALongPromptThatSixteenShareIsThatOfOneAndTheirOwnParts) {
  EngineFixture fixture("toy-llama", DType::kBF16);
  constexpr int64_t kSize = 16, kShared = 1000, kOwn = 20;
  fixture.use_pool(kSize, 400);
  fixture.options.prefix_cache = true;
  const auto engine = fixture.engine();
  const Ids shared = fixture.prompt(kShared, 1);
  for (uint64_t i = 0; i < 16; ++i) {
    Ids prompt = shared;
    const Ids own = fixture.prompt(kOwn, 100 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    EngineRequest request;
    request.request = fixture.ask(prompt, 8);
    engine->submit(request);
  }
  while (engine->stats().decoding < 16) ASSERT_TRUE(engine->step());
  const auto blocks_of = [](int64_t tokens) { return (tokens + kSize - 1) / kSize; };
  const int64_t layers = engine->session().cache().num_layers();
  const int64_t all = layers * (blocks_of(kShared) + 16 * blocks_of(kOwn));
  EXPECT_LE(static_cast<double>(engine->stats().used_blocks), 1.1 * static_cast<double>(all));
  EXPECT_EQ(engine->stats().prefixes.hit_tokens, 15 * (kShared / kSize * kSize));
}

TEST_P(EnginePrefixes, AnAnswerIsAPrefixOfTheNextTurn) {
  const auto engine = fixture_.engine();
  Request first = fixture_.ask(fixture_.prompt(10, 3), 12);
  const int64_t one = engine->submit(log_.watch(first));
  run_checked(*engine);
  Request second = first;
  const Ids& answer = log_.of(one).tokens;
  second.prompt_ids.insert(second.prompt_ids.end(), answer.begin(), answer.end());
  second.prompt_ids.push_back(5);
  const int64_t two = engine->submit(log_.watch(second));
  run_checked(*engine);
  expect_alone({first, second}, {one, two});
  EXPECT_EQ(engine->stats().prefixes.hit_tokens, 20);
}

TEST_P(EnginePrefixes, Case31_TenantsWithSaltsOfTheirOwnShareNothingAndSettingsDoNotMatter) {
  const std::vector<Request> requests = alike(20, 2);
  const auto engine = fixture_.engine();
  std::vector<int64_t> ids;
  for (const char* salt : {"a", "b", "a"}) {
    EngineRequest request = log_.watch(requests[0]);
    request.salt = salt;
    request.request.sampling.do_sample = ids.size() == 2;  // another setting, the same blocks
    ids.push_back(engine->submit(request));
    run_checked(*engine);
    EXPECT_EQ(engine->stats().prefixes.hit_tokens, ids.size() == 3 ? 24 : 0);
  }
  expect_alone({requests[0], requests[0]}, {ids[0], ids[1]});
}

TEST_P(EnginePrefixes, Case27_WhatWasPreemptedFindsItsBlocksAgain) {
  preempt_after_every_step(
      [](const Engine&) {},
      [](const Engine& engine) { EXPECT_GE(engine.stats().prefixes.hit_tokens, 20); });
}

TEST_P(EnginePrefixes, Case27_WhatStoodAsideComesBackWithoutBeingComputedAgain) {
  fixture_.options.prefix_cache = false;
  fixture_.options.swap_folder.emplace();
  preempt_after_every_step(
      [](const Engine& engine) {
        EXPECT_EQ(engine.stats().free_blocks, engine.stats().num_blocks);
      },
      [](const Engine& engine) {
        EXPECT_EQ(engine.stats().swapped_in, 1);
        EXPECT_EQ(engine.stats().tokens_fed, 21 + 10 - 1);
        expect_all_free(engine);
      });
}

TEST_P(EnginePrefixes, WhatIsCancelledWhileItStandsAsideLeavesNothing) {
  fixture_.options.swap_folder.emplace();
  const auto engine = fixture_.engine();
  const int64_t id = engine->submit(log_.watch(fixture_.ask(fixture_.prompt(9, 2), 10)));
  for (int i = 0; i < 3; ++i) engine->step();
  ASSERT_TRUE(engine->preempt(id));
  EXPECT_TRUE(engine->cancel(id));
  EXPECT_FALSE(engine->step());
  expect_all_free(*engine);
}

TEST_P(EnginePrefixes, InAPoolThatIsTooSmallForAllTheTokensStayTheSame) {
  fixture_.use_pool(4, 16);
  std::vector<Request> requests = alike(20, 4), others = alike(8, 4);
  requests.insert(requests.end(), others.begin(), others.end());
  const auto engine = fixture_.engine();
  std::vector<int64_t> ids;
  for (int round = 0; round < 3; ++round)
    for (const Request& request : requests) ids.push_back(engine->submit(log_.watch(request)));
  run_checked(*engine);
  for (size_t i = 0; i < ids.size(); ++i)
    expect_result(log_.of(ids[i]), fixture_.alone(requests[i % requests.size()]), str(i));
  EXPECT_GT(engine->stats().prefixes.evicted_blocks, 0);
  expect_all_free(*engine);
}

TEST(EnginePrefixesWhere, TheCacheCannotShareBlocksTheEngineSaysWhy) {
  EngineFixture fixture("llama-micro");
  fixture.options.prefix_cache = true;
  for (const char* kind : {"dynamic", "static", "quantized"}) {
    fixture.options.session.cache_implementation = kind;
    fixture.options.session.max_cache_len = 50;
    fixture.options.session.cache_config =
        std::string(kind) == "quantized" ? R"({"q_group_size":8})" : "";
    try {
      fixture.engine();
      FAIL() << kind;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("no prefix cache: "), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace larder::test
