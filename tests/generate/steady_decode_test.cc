// A steady decode step allocates nothing: neither from the heap nor from larder's allocator. The
// first step after a prefill is not steady yet: sliding layers change to a step of another size.
#include <gtest/gtest.h>

#include "larder/generate/engine.h"
#include "larder/generate/generation.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/logits_run.h"

namespace larder::test {
namespace {

size_t allocations_of_20_steps(Generation& generation) {
  const size_t before = allocations_so_far();
  for (int i = 0; i < 20; ++i) generation.step();
  return allocations_so_far() - before;
}

TEST(SteadyDecode, AllocatesNothing) {
  HostAllocator host;
  for (const auto& [name, cache] : {std::pair{"toy-llama", "static"},
                                    {"toy-gemma2", "hybrid"},
                                    {"toy-mistral", "sliding_window"},
                                    {"toy-mistral", "dynamic"}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int threads : {1, 2}) {
        const auto model = Model::load(toy_folder(name), dtype, host);
        TrackingAllocator tracking(host);
        Session session(model, {cache, dtype, 1000, AttentionKind::kFused, threads, {}}, tracking);
        // 500 tokens of prompt: the steps pass the end of a span.
        Generation generation(session, {{some_ids(500, 2048, 1), 60, {}, {}, {}},
                                        {some_ids(9, 2048, 2), 60, {}, {}, {}}});
        for (int i = 0; i < 4; ++i) generation.step();
        const size_t calls = tracking.total().calls;
        EXPECT_EQ(allocations_of_20_steps(generation), 0u)
            << name << " " << dtype_name(dtype) << " " << threads;
        EXPECT_EQ(tracking.total().calls, calls);
      }
    }
  }
}

TEST(SteadyDecode, OfWeightsInCodesAllocatesNothing) {
  HostAllocator host;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    LoadOptions load;
    load.weights = format;
    TrackingAllocator tracking(host);
    Session session(Model::load(toy_folder("toy-llama"), load, host),
                    {"static", DType::kF32, 1000, AttentionKind::kFused, 2, {}}, tracking);
    Generation generation(session, {{some_ids(50, 2048, 1), 60, {}, {}, {}}});
    for (int i = 0; i < 4; ++i) generation.step();
    const size_t calls = tracking.total().calls;
    EXPECT_EQ(allocations_of_20_steps(generation), 0u) << weight_format_name(format);
    EXPECT_EQ(tracking.total().calls, calls);
  }
}

TEST(SteadyDecode, OfAnEngineAllocatesNothingEither) {
  HostAllocator host;
  for (const auto& [name, cache] : {std::pair{"toy-llama", "static"},
                                    {"toy-gemma2", "hybrid"},
                                    {"toy-mistral", "sliding_window"},
                                    {"toy-llama", "paged"},
                                    {"toy-gemma2", "paged"}}) {
    for (const SchedulerKind kind : {SchedulerKind::kFifo, SchedulerKind::kPrefillFirst}) {
      TrackingAllocator tracking(host);
      EngineOptions options;
      options.session = {cache, std::nullopt, 600, AttentionKind::kFused, 2, {}};
      options.scheduler.kind = kind;
      // 20 steps fill blocks of 16: rows take new ones, and the prefix cache takes the full ones
      // in.
      options.prefix_cache = std::string_view(cache) == "paged";
      Engine engine(Model::load(toy_folder(name), std::nullopt, host), options, tracking);
      int64_t tokens = 0;
      for (uint64_t i = 0; i < 3; ++i) {
        EngineRequest request;
        request.request = {some_ids(9 + 240 * static_cast<int64_t>(i), 2048, i), 60, {}, {}, {}};
        // A ring keeps the tokens of a step aside, in a block of their size, which guesses change.
        const bool guesses = i == 2 && options.prefix_cache;
        if (guesses) {
          request.request.max_new_tokens = 90;
          request.prompt_lookup = PromptLookupParams{2, 2};
        }
        request.request.sampling.do_sample = i > 0;
        request.request.sampling.top_k = 50;
        request.on_token = [&tokens](const EngineToken&) { return ++tokens > 0; };
        engine.submit(request);
      }
      for (int i = 0; i < 6; ++i) engine.step();
      const int64_t guessed = engine.stats().guessed;
      const size_t before = allocations_so_far(), calls = tracking.total().calls;
      for (int i = 0; i < 20; ++i) engine.step();
      EXPECT_EQ(allocations_so_far() - before, 0u) << name << " " << scheduler_name(kind);
      EXPECT_EQ(tracking.total().calls, calls) << name;
      EXPECT_GE(tokens, 60);
      EXPECT_EQ(engine.stats().decoding, 3);
      EXPECT_TRUE(!options.prefix_cache || engine.stats().guessed > guessed);
    }
  }
}

TEST(SteadyDecode, TheCounterCounts) {
  const size_t before = allocations_so_far();
  const std::vector<int>* made = new std::vector<int>(1000);
  delete made;
  EXPECT_GE(allocations_so_far() - before, 1u);
}

TEST(SteadyDecode, SamplingAllocatesNothingEither) {
  HostAllocator host;
  Session session(Model::load(toy_folder("toy-llama"), std::nullopt, host),
                  {"static", std::nullopt, 100, AttentionKind::kFused, 1, {}}, host);
  Request request{some_ids(9, 2048, 2), 60, {}, {}, {}};
  request.sampling.do_sample = true;
  request.sampling.temperature = 0.9;
  request.sampling.top_k = 50;
  request.sampling.top_p = 0.9;
  request.sampling.repetition_penalty = 1.1;
  Generation generation(session, {request});
  for (int i = 0; i < 4; ++i) generation.step();
  EXPECT_EQ(allocations_of_20_steps(generation), 0u);
}

}  // namespace
}  // namespace larder::test
