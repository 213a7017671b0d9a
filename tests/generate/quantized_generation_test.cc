// Generation with quantized caches.
#include <gtest/gtest.h>

#include "larder/generate/generation.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/logits_run.h"

namespace larder::test {
namespace {

struct Setup {
  std::string config;
  AttentionKind attention = AttentionKind::kFused;
};

std::unique_ptr<Session> session(const std::shared_ptr<const Model>& model, const Setup& setup,
                                 Allocator& allocator, int threads = 1) {
  SessionOptions options;
  options.cache_implementation = "quantized";
  options.cache_config = setup.config;
  options.attention = setup.attention;
  options.threads = threads;
  return std::make_unique<Session>(model, options, allocator);
}

std::vector<Ids> run(Session& session, const std::vector<Ids>& prompts, int64_t count) {
  std::vector<Request> requests;
  for (const Ids& prompt : prompts) requests.push_back({prompt, count, {}, {}, {}});
  Generation generation(session, requests);
  generation.run();
  std::vector<Ids> ids;
  for (size_t row = 0; row < prompts.size(); ++row)
    ids.push_back(generation.result(row).output_ids);
  return ids;
}

TEST(QuantizedGeneration, Case15_RowsOfDifferentLengthAreThoseRowsAlone) {
  HostAllocator host;
  const std::vector<Ids> prompts = {some_ids(5, 2048, 1), some_ids(37, 2048, 2)};
  for (const char* name : {"toy-llama", "toy-gemma2"}) {
    const auto model = Model::load(toy_folder(name), DType::kF32, host);
    for (const std::string config :
         {R"({"q_group_size":32,"residual_length":6})",
          R"({"q_group_size":16,"axis_key":-1,"residual_length":8})",
          R"({"backend":"hqq","nbits":8,"q_group_size":32,"residual_length":5})",
          R"({"backend":"hqq","nbits":3,"axis_key":0,"axis_value":0,"residual_length":7})",
          R"({"q_group_size":8,"axis_value":-1,"append_only":true,"residual_length":4})"}) {
      for (const AttentionKind attention : {AttentionKind::kFused, AttentionKind::kEager}) {
        const auto both = session(model, {config, attention}, host, 2);
        const std::vector<Ids> got = run(*both, prompts, 16);
        for (size_t row = 0; row < 2; ++row) {
          const auto alone = session(model, {config, attention}, host);
          EXPECT_EQ(got[row], run(*alone, {prompts[row]}, 16)[0])
              << name << " " << config << " row " << row;
        }
      }
    }
  }
}

TEST(QuantizedGeneration, EightBitsGiveTheIdsOfTheDynamicCache) {
  HostAllocator host;
  const auto model = Model::load(toy_folder("toy-llama"), DType::kF32, host);
  const std::vector<Ids> prompts = {some_ids(9, 2048, 3)};
  Session dynamic(model, {}, host);
  const auto quantized = session(
      model, {R"({"backend":"hqq","nbits":8,"q_group_size":32,"residual_length":16})"}, host);
  EXPECT_EQ(run(*quantized, prompts, 40), run(dynamic, prompts, 40));
}

TEST(QuantizedGeneration, ASteadyStepAllocatesNothing) {
  HostAllocator host;
  const auto model = Model::load(toy_folder("toy-llama"), DType::kBF16, host);
  TrackingAllocator tracking(host);
  const auto one = session(model, {R"({"q_group_size":32})"}, tracking, 2);
  Generation generation(
      *one, {{some_ids(500, 2048, 1), 60, {}, {}, {}}, {some_ids(9, 2048, 2), 60, {}, {}, {}}});
  for (int i = 0; i < 5; ++i) generation.step();
  const size_t heap = allocations_so_far(), calls = tracking.total().calls;
  for (int i = 0; i < 20; ++i) generation.step();
  EXPECT_EQ(allocations_so_far(), heap);
  EXPECT_EQ(tracking.total().calls, calls);
}

TEST(QuantizedGeneration, ARunWhoseMemoryFailsAnywhereCanBeRunAgain) {
  HostAllocator host;
  const auto model = Model::load(toy_folder("toy-llama"), DType::kF32, host);
  for (const std::string config : {R"({"q_group_size":32,"residual_length":4})",
                                   R"({"backend":"hqq","axis_key":0,"residual_length":4})"}) {
    const Ids expected = run(*session(model, {config}, host), {some_ids(9, 2048, 3)}, 16)[0];
    for (size_t fail_at = 0;; ++fail_at) {
      TrackingAllocator tracking(host);
      FaultAllocator faults(tracking, fail_at);
      bool failed = false;
      {
        const auto one = session(model, {config}, faults);
        Generation generation(*one, {{some_ids(9, 2048, 3), 16, {}, {}, {}}});
        try {
          generation.run();
        } catch (const OutOfMemory&) {
          failed = true;
          generation.run();
        }
        EXPECT_EQ(generation.result(0).output_ids, expected) << config << " call " << fail_at;
      }
      EXPECT_EQ(tracking.total().live, 0u);
      if (!failed) break;
    }
  }
}

}  // namespace
}  // namespace larder::test
