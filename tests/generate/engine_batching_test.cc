// Batched = alone (case 26): the tokens and the bits of the logits of every request are those it
// has by itself.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/engine_fixture.h"

namespace larder::test {
namespace {

class EngineBatching : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, EngineBatching,
                         ::testing::Values("llama-micro", "mistral-micro", "gemma2-micro",
                                           "mamba-micro", "recurrentgemma-micro", "toy-llama",
                                           "toy-mistral", "toy-gemma2"),
                         model_test_name);

// Requests that come at random within 40 steps; some greedy, some drawn.
struct Arrival {
  Request request;
  int step;
};
std::vector<Arrival> arrivals(const EngineFixture& fixture) {
  std::mt19937_64 random(26);
  std::vector<Arrival> list;
  for (const int64_t length : {1, 3, 4, 5, 8, 15, 16, 17}) {
    Request request = fixture.ask(fixture.prompt(length, random()), 3 + random() % 10);
    request.sampling.do_sample = random() % 2 == 0;
    request.sampling.seed = random();
    list.push_back({request, static_cast<int>(random() % 40)});
  }
  return list;
}

void run_arrivals(const EngineFixture& fixture, const std::vector<Arrival>& list,
                  const std::vector<Result>& expected, const std::string& how) {
  const auto engine = fixture.engine();
  EngineLog log;
  std::map<int64_t, size_t> ids;
  bool more = true;
  for (int step = 0; step < 40 || more; ++step) {
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].step == step) ids[engine->submit(log.watch(list[i].request))] = i;
    more = engine->step();
    engine->check_invariants();
    EXPECT_LE(engine->stats().last_step_tokens, fixture.options.scheduler.max_tokens_per_step);
  }
  ASSERT_EQ(ids.size(), list.size());
  for (const auto& [id, i] : ids) expect_result(log.of(id), expected[i], str(how, ", request ", i));
  // Every token of a request is fed once, but for the last.
  int64_t tokens = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    tokens +=
        static_cast<int64_t>(list[i].request.prompt_ids.size() + expected[i].output_ids.size()) - 1;
  }
  EXPECT_EQ(engine->stats().tokens_fed, tokens) << how;
  expect_all_free(*engine);
}

TEST_P(EngineBatching, Case26_BatchedIsAloneWhateverTheBudgetSchedulerAndThreads) {
  EngineFixture fixture(GetParam());
  const std::vector<Arrival> list = arrivals(fixture);
  std::vector<Result> expected;
  for (const Arrival& arrival : list) expected.push_back(fixture.alone(arrival.request));
  for (const SchedulerKind kind : {SchedulerKind::kFifo, SchedulerKind::kPrefillFirst}) {
    for (const int64_t budget : {1, 5, 64, 4096}) {
      for (const int threads : {1, 3}) {
        if (threads == 3 && budget != 5) continue;
        fixture.options.scheduler.kind = kind;
        fixture.options.scheduler.max_tokens_per_step = budget;
        fixture.options.session.threads = threads;
        run_arrivals(fixture, list, expected,
                     str(scheduler_name(kind), ", budget ", budget, ", threads ", threads));
      }
    }
  }
  EXPECT_GT(fixture.spy->compared(), 0);
  EXPECT_EQ(fixture.spy->different(), 0);
}

TEST_P(EngineBatching, Case27_PreemptedAfterAnyStepTheTokensAreTheSame) {
  EngineFixture fixture(GetParam());
  fixture.options.scheduler.max_tokens_per_step = 4;
  const Request request = fixture.ask(fixture.prompt(9, 3), 6),
                other = fixture.ask(fixture.prompt(2, 4), 12);
  const Result expected = fixture.alone(request), beside = fixture.alone(other);
  for (int at = 0, runs = 1; runs > 0; ++at) {
    const auto engine = fixture.engine();
    EngineLog log;
    const int64_t second = engine->submit(log.watch(other));
    const int64_t id = engine->submit(log.watch(request));
    runs = 0;
    for (int step = 0; engine->step(); ++step) {
      if (step == at && engine->preempt(id)) ++runs;
      engine->check_invariants();
    }
    EXPECT_EQ(engine->stats().preemptions, runs);
    expect_result(log.of(id), expected, str("preempted after step ", at));
    expect_result(log.of(second), beside, "beside it");
    if (at == 0) runs = 1;  // it may not have begun yet
    ASSERT_LT(at, 100);
  }
  EXPECT_EQ(fixture.spy->different(), 0);
}

TEST(EngineDtypes, Case26_BatchedIsAloneInBf16AndF16) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    EngineFixture fixture("llama-micro", dtype);
    fixture.options.scheduler.max_tokens_per_step = 5;
    const std::vector<Arrival> list = arrivals(fixture);
    std::vector<Result> expected;
    for (const Arrival& arrival : list) expected.push_back(fixture.alone(arrival.request));
    run_arrivals(fixture, list, expected, std::string(dtype_name(dtype)));
    EXPECT_EQ(fixture.spy->different(), 0);
  }
}

TEST(EngineKinds, Case26_BatchedIsAloneInEveryKindOfCacheThatKeepsItsBits) {
  const std::string larder = R"({"backend": "larder", "nbits": 8, "residual_length": 8})";
  for (const auto& [kind, config] :
       std::vector<std::pair<std::string, std::string>>{{"static", ""},
                                                        {"dynamic_full", ""},
                                                        {"hybrid", ""},
                                                        {"offloaded", ""},
                                                        {"quantized", larder}}) {
    EngineFixture fixture("gemma2-micro");
    fixture.options.session.cache_implementation = kind;
    fixture.options.session.cache_config = config;
    fixture.options.session.max_cache_len = 64;
    fixture.options.scheduler.max_tokens_per_step = 5;
    const std::vector<Arrival> list = arrivals(fixture);
    std::vector<Result> expected;
    for (const Arrival& arrival : list) expected.push_back(fixture.alone(arrival.request));
    run_arrivals(fixture, list, expected, kind);
    EXPECT_EQ(fixture.spy->different(), 0) << kind;
  }
}

}  // namespace
}  // namespace larder::test
