// Generations and engines on several threads. A program of its own, which the thread sanitizer
// builds. Case 49: threads, lifetimes, and what stays behind.
#include "larder/generate/generation.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <thread>

#include "larder/base/error.h"
#include "larder/generate/engine.h"
#include "tests/support/logits_run.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

Ids greedy(const std::shared_ptr<const Model>& model, Allocator& allocator, int threads,
           uint64_t seed) {
  Session session(model, {"dynamic", std::nullopt, 0, AttentionKind::kFused, threads, {}},
                  allocator);
  return generate(session, {some_ids(20, 2048, seed), 10, {}, {}, {}}).output_ids;
}

TEST(Case49Threads, TokensDoNotDependOnTheirNumber) {
  HostAllocator host;
  const auto model = Model::load(toy_folder("toy-gemma2"), std::nullopt, host);
  const Ids one = greedy(model, host, 1, 1);
  for (const int threads : {0, 2, 3, 7, 64})
    EXPECT_EQ(greedy(model, host, threads, 1), one) << threads;
  EXPECT_NE(error_text([&] { greedy(model, host, -1, 1); }).find("-1"), std::string::npos);
}

TEST(Case49Threads, TwoGenerationsAtOnceOnOneModelAreThoseGenerationsAlone) {
  HostAllocator host;
  const auto model = Model::load(toy_folder("toy-llama"), std::nullopt, host);
  const Ids first = greedy(model, host, 1, 1), second = greedy(model, host, 1, 2);
  const auto repeat = [&](uint64_t seed, const Ids& expected, int& wrong) {
    for (int round = 0; round < 50; ++round)
      wrong += greedy(model, host, 1 + round % 2, seed) != expected ? 1 : 0;
  };
  int wrong_a = 0, wrong_b = 0;
  std::thread a([&] { repeat(1, first, wrong_a); }), b([&] { repeat(2, second, wrong_b); });
  a.join();
  b.join();
  EXPECT_EQ(wrong_a + wrong_b, 0);
}

// Three requests, and a fourth that is left in the middle.
Ids served(const std::shared_ptr<const Model>& model, Allocator& allocator, int threads) {
  EngineOptions options;
  options.session.threads = threads;
  options.scheduler.max_tokens_per_step = 9;
  Engine engine(model, options, allocator);
  Ids ids;
  const auto submit = [&](uint64_t seed, int64_t max_new_tokens) {
    EngineRequest request;
    request.request = {some_ids(20, 2048, seed), max_new_tokens, {}, {}, {}};
    request.on_finish = [&ids](const EngineFinish& finish) {
      ids.insert(ids.end(), finish.result.output_ids.begin(), finish.result.output_ids.end());
    };
    engine.submit(request);
  };
  for (const uint64_t seed : {1, 2, 3}) submit(seed, 6);
  submit(4, 1000);
  while (ids.size() < 18) engine.step();
  return ids;
}

TEST(Case49Threads, TwoEnginesAtOnceOnOneModelAreThoseEnginesAlone) {
  HostAllocator host;
  const auto model = Model::load(toy_folder("toy-llama"), std::nullopt, host);
  const Ids expected = served(model, host, 1);
  const auto repeat = [&](int threads, int& wrong) {
    for (int round = 0; round < 20; ++round)
      wrong += served(model, host, threads) != expected ? 1 : 0;
  };
  int wrong_a = 0, wrong_b = 0;
  std::thread a([&] { repeat(1, wrong_a); }), b([&] { repeat(3, wrong_b); });
  a.join();
  b.join();
  EXPECT_EQ(wrong_a + wrong_b, 0);
}

TEST(Case49Threads, ASessionKeepsItsModelAlive) {
  HostAllocator host;
  auto model = Model::load(toy_folder("toy-llama"), std::nullopt, host);
  const Ids expected = greedy(model, host, 1, 1);
  Session session(model, {}, host);
  model.reset();
  EXPECT_EQ(generate(session, {some_ids(20, 2048, 1), 10, {}, {}, {}}).output_ids, expected);
}

TEST(Case49Threads, AGenerationMayBeLeftInTheMiddle) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  {
    Session session(Model::load(toy_folder("toy-llama"), std::nullopt, tracking), {}, tracking);
    Generation generation(session, {{some_ids(20, 2048, 1), 10, {}, {}, {}}});
    generation.step();
    generation.step();
  }
  EXPECT_EQ(tracking.total().live, 0u);
}

size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

TEST(Case49Memory, TwoHundredRoundsLeaveNothingBehind) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  HostAllocator host;
  size_t early = 0;
  for (int round = 1; round <= 200; ++round) {
    const auto model = Model::load(toy_folder("toy-llama"), std::nullopt, host);
    greedy(model, host, 2, 1);
    if (round == 20) early = resident_bytes();
  }
  malloc_trim(0);
  EXPECT_LT(resident_bytes(), early + (size_t{1} << 20));
}

}  // namespace
}  // namespace larder::test
