#include "larder/generate/generation.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

std::shared_ptr<const Model> toy(Allocator& allocator) {
  return Model::load(toy_folder("toy-llama"), DType::kF32, allocator);
}

class Generations : public ::testing::Test {
 protected:
  Generations() : model_(toy(host_)) {}
  std::unique_ptr<Session> session(const std::string& cache = "dynamic", int64_t capacity = 64,
                                   int threads = 1) {
    return std::make_unique<Session>(
        model_, SessionOptions{cache, std::nullopt, capacity, AttentionKind::kFused, threads, {}},
        host_);
  }
  Result run(Request request) { return generate(*session(), std::move(request)); }
  Request ask(Ids prompt, int64_t n) { return {std::move(prompt), n, {}, {}, {}}; }

  HostAllocator host_;
  std::shared_ptr<const Model> model_;
  const Ids prompt_ = {1, 1951, 637, 55, 17, 202, 413, 308, 15};
};

TEST_F(Generations, Case12_ResetMakesACacheLikeNew) {
  for (const char* kind : {"dynamic", "static"}) {
    const auto used = session(kind), fresh = session(kind);
    generate(*used, ask(prompt_, 5));
    const std::string text = error_text([&] { generate(*used, ask({1, 2, 3, 4}, 5)); });
    EXPECT_NE(text.find("still holds 13 tokens"), std::string::npos) << text;
    used->reset();
    EXPECT_EQ(generate(*used, ask({1, 2, 3, 4}, 5)).output_ids,
              generate(*fresh, ask({1, 2, 3, 4}, 5)).output_ids);
    used->reset();
    Generation two(*used, {ask({1, 2}, 3), ask({5}, 3)});
    two.run();
    EXPECT_EQ(two.result(1).output_ids, run(ask({5}, 3)).output_ids);
  }
}

TEST_F(Generations, Case13_TheLastNewTokenNeedsNoPlaceInAStaticCache) {
  const auto fits = [&](int64_t prompt, int64_t n) {
    const auto one = session("static", 8);
    const std::string text = error_text([&] { generate(*one, ask(some_ids(prompt, 2048, 3), n)); });
    EXPECT_EQ(one->cache().batch() == 0, !text.empty()) << "a refusal comes before any write";
    return text;
  };
  EXPECT_NE(fits(9, 1).find("need 9 places in the cache, but max_cache_len is 8"),
            std::string::npos);
  EXPECT_EQ(fits(8, 1), "");
  EXPECT_EQ(fits(6, 3), "");
  EXPECT_NE(fits(6, 4).find("need 9 places in the cache, but max_cache_len is 8"),
            std::string::npos);
}

// Rows of any length, packed: each is what it would be alone, whatever stands beside it.
TEST_F(Generations, Case15_RowsOfABatchAreThoseRowsAlone) {
  const std::vector<Ids> prompts = {some_ids(3, 2048, 1), some_ids(7, 2048, 2),
                                    some_ids(40, 2048, 3)};
  std::vector<Ids> alone;
  for (const Ids& prompt : prompts) alone.push_back(run(ask(prompt, 8)).output_ids);
  for (const char* kind : {"dynamic", "static"}) {
    for (const std::vector<size_t>& order :
         {std::vector<size_t>{0, 1}, {1, 0}, {2, 0}, {2, 1, 0}}) {
      std::vector<Request> requests;
      for (const size_t i : order) requests.push_back(ask(prompts[i], 8));
      const auto batch = session(kind);
      Generation generation(*batch, requests);
      generation.run();
      for (size_t r = 0; r < order.size(); ++r)
        EXPECT_EQ(generation.result(r).output_ids, alone[order[r]]);
    }
  }
}

TEST_F(Generations, Case42_AnyListedEndTokenEndsARow) {
  const Ids free = run(ask(prompt_, 6)).output_ids;
  Request first = ask(prompt_, 6);
  first.eos_token_ids = {2000, free[0]};
  const Result at_once = run(first);
  EXPECT_EQ(at_once.output_ids, Ids{free[0]});
  EXPECT_EQ(at_once.finish_reason, FinishReason::kStop);

  Request in_prompt = ask(prompt_, 6);
  in_prompt.eos_token_ids = {prompt_[2]};
  EXPECT_EQ(run(in_prompt).output_ids, free);
  EXPECT_EQ(run(in_prompt).finish_reason, FinishReason::kLength);

  Request delayed = first;
  delayed.sampling.min_new_tokens = 3;
  const Result later = run(delayed);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(later.output_ids.at(i), free[0]);
}

TEST_F(Generations, Case42_ARowThatEndsEarlyDoesNotDisturbTheOthers) {
  const Ids a = run(ask(prompt_, 8)).output_ids, b = run(ask({1, 5, 9}, 8)).output_ids;
  Request ends = ask(prompt_, 8);
  ends.eos_token_ids = {a[0]};
  const auto batch = session();
  Generation generation(*batch, {ends, ask({1, 5, 9}, 8)});
  generation.run();
  EXPECT_EQ(generation.result(0).output_ids, Ids{a[0]});
  EXPECT_EQ(generation.result(1).output_ids, b);
}

TEST_F(Generations, Case45_WhatMakesNoSenseIsRefusedWithNameAndValue) {
  const auto refusal = [&](Request request) {
    return error_text([&] { run(std::move(request)); });
  };
  EXPECT_NE(refusal(ask(prompt_, -1)).find("max_new_tokens -1"), std::string::npos);
  EXPECT_NE(refusal(ask({1, 2048}, 3)).find("prompt id 2048"), std::string::npos);
  EXPECT_NE(refusal(ask({-1}, 3)).find("prompt id -1"), std::string::npos);
  EXPECT_NE(refusal(ask(some_ids(2049, 2048, 1), 1))
                .find("2049 tokens, more than max_position_embeddings 2048"),
            std::string::npos);
  Request stops = ask(prompt_, 3);
  stops.stop_strings = {"x"};
  EXPECT_NE(refusal(stops).find("stop_strings need a tokenizer"), std::string::npos);
  const auto one = session();
  EXPECT_NE(error_text([&] { Generation(*one, {}); }).find("batch of 0"), std::string::npos);
}

TEST_F(Generations, Case45_NoNewTokensMeansNone) {
  const auto one = session();
  const Result result = generate(*one, ask(prompt_, 0));
  EXPECT_TRUE(result.output_ids.empty());
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(one->cache().batch(), 0) << "no forward is needed";
}

TEST_F(Generations, Case45_AnEmptyPromptStartsFromBosOrIsRefused) {
  EXPECT_EQ(run(ask({}, 4)).output_ids, run(ask({1}, 4)).output_ids);
  TempFolder folder;
  TinyModel tiny;
  tiny.config.erase("bos_token_id");
  tiny.config["bos_token_id"] = nullptr;
  tiny.write(folder.path());
  Session no_bos(Model::load(folder.path(), std::nullopt, host_), {}, host_);
  EXPECT_NE(error_text([&] { generate(no_bos, ask({}, 4)); }).find("no bos_token_id"),
            std::string::npos);
}

TEST_F(Generations, TheContextEndsAGenerationWithReasonLength) {
  TempFolder folder;
  TinyModel().write(folder.path());  // max_position_embeddings 64
  Session tiny(Model::load(folder.path(), std::nullopt, host_), {}, host_);
  const Result result = generate(tiny, ask(some_ids(60, 32, 1), 100));
  EXPECT_EQ(result.output_ids.size(), 5u) << "64 places hold the prompt and four of them";
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  tiny.reset();
  EXPECT_EQ(generate(tiny, ask(some_ids(60, 32, 1), INT64_MAX)).output_ids.size(), 5u);
}

TEST_F(Generations, PromptsAreFedInChunksWithTheSameResult) {
  const Ids expected = run(ask(some_ids(50, 2048, 4), 6)).output_ids;
  for (const int32_t chunk : {1, 7, 49, 50, 51}) {
    const auto one = session();
    GenerationOptions options;
    options.prefill_chunk = chunk;
    Generation generation(*one, {ask(some_ids(50, 2048, 4), 6), ask({5, 6, 7}, 2)}, options);
    int steps = 0;
    while (!generation.prefilled()) generation.step(), ++steps;
    EXPECT_EQ(steps, (53 + chunk - 1) / chunk);
    generation.run();
    EXPECT_EQ(generation.result(0).output_ids, expected) << chunk;
  }
}

TEST_F(Generations, ACallbackMayCancelOneRowAndAnInterruptAll) {
  const auto two = session();
  GenerationOptions options;
  options.on_token = [](const TokenEvent& event) { return event.row != 0; };
  Generation generation(*two, {ask(prompt_, 5), ask({1, 5, 9}, 5)}, options);
  generation.run();
  EXPECT_EQ(generation.result(0).finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(generation.result(0).output_ids.size(), 1u);
  EXPECT_EQ(generation.result(1).output_ids, run(ask({1, 5, 9}, 5)).output_ids);

  const auto one = session();
  int asked = 0;
  options = {};
  options.interrupted = [&asked] { return ++asked > 3; };
  Generation stopped(*one, {ask(prompt_, 50)}, options);
  stopped.run();
  EXPECT_EQ(stopped.result(0).output_ids.size(), 3u);
  EXPECT_EQ(finish_reason_name(stopped.result(0).finish_reason), "cancelled");
}

TEST_F(Generations, TheSameSeedGivesTheSameTokensAloneAndInABatch) {
  Request request = ask(prompt_, 12);
  request.sampling.do_sample = true;
  request.sampling.temperature = 1.3;
  request.sampling.seed = 11;
  const Ids alone = run(request).output_ids;
  for (const int threads : {1, 2, 3}) {
    const auto batch = session("dynamic", 64, threads);
    Request other = ask({4, 4, 4, 4}, 9);
    other.sampling = request.sampling;
    Generation generation(*batch, {other, request});
    generation.run();
    EXPECT_EQ(generation.result(1).output_ids, alone);
  }
  request.sampling.seed = 12;
  EXPECT_NE(run(request).output_ids, alone);
}

TEST_F(Generations, WhenMemoryRunsOutAStepCanBeTriedAgain) {
  const Ids expected = run(ask(some_ids(60, 2048, 5), 8)).output_ids;
  FaultAllocator faults(host_);
  for (size_t fail_at = 0; fail_at < 60; ++fail_at) {
    Session one(model_, {}, faults);
    Generation generation(one, {ask(some_ids(60, 2048, 5), 8)});
    faults.arm(fail_at);
    int refusals = 0;
    for (bool more = true; more;) {
      try {
        more = generation.step();
      } catch (const OutOfMemory&) {
        ASSERT_EQ(++refusals, 1);
      }
    }
    EXPECT_EQ(generation.result(0).output_ids, expected) << "call " << fail_at;
    if (refusals == 0) return;
  }
  FAIL() << "a generation with fewer than 60 allocations was expected";
}

TEST_F(Generations, ABudgetIsAHardLimitThatNamesItself) {
  BudgetAllocator budget(host_, 100000);
  Session one(model_, {}, budget);
  try {
    generate(one, ask(prompt_, 5));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.limit(), 100000u);
    EXPECT_NE(std::string(error.what()).find("100000"), std::string::npos);
  }
  EXPECT_EQ(one.cache().batch(), 0);
}

}  // namespace
}  // namespace larder::test
