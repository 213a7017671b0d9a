// Engines over a pool of codes: which tokens a query sees as codes depends on its position alone,
// so the promise of equal bits holds there too.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/engine_fixture.h"

namespace larder::test {
namespace {

constexpr const char* kCodes = R"("nbits": 8, "residual_length": 8)";

class EngineCodes : public ::testing::TestWithParam<const char*> {
 protected:
  // What the request gives alone, over a quantized cache that grows.
  Result alone(const Request& request) const {
    SessionOptions options = fixture_.options.session;
    options.cache_implementation = "quantized";
    options.cache_config = str(R"({"backend": "larder", )", kCodes, "}");
    Session session(fixture_.spy, options, EngineFixture::host());
    return generate(session, request, {});
  }
  EngineFixture fixture_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Models, EngineCodes,
                         ::testing::Values("llama-micro", "mistral-micro", "gemma2-micro"),
                         model_test_name);

TEST_P(EngineCodes, Case26_BatchedAndPreemptedIsAloneWhateverTheBudgetAndScheduler) {
  std::mt19937_64 random(26);
  std::vector<Request> requests;
  std::vector<Result> expected;
  for (const int64_t length : {1, 5, 63, 64, 65, 72, 73, 140}) {
    Request request = fixture_.ask(fixture_.prompt(length, random()), 3 + length % 80);
    request.sampling.do_sample = length % 2 == 0;
    request.sampling.seed = random();
    requests.push_back(request);
    expected.push_back(alone(request));
  }
  fixture_.options.session.cache_implementation = "paged";
  fixture_.options.session.cache_config = str(R"({"num_blocks": 16, "quantized": {)", kCodes, "}}");
  int64_t preemptions = 0;
  for (const SchedulerKind kind : {SchedulerKind::kFifo, SchedulerKind::kPrefillFirst}) {
    for (const int64_t budget : {1, 5, 64, 4096}) {
      if (budget == 1 && kind == SchedulerKind::kPrefillFirst) continue;
      fixture_.options.scheduler.kind = kind;
      fixture_.options.scheduler.max_tokens_per_step = budget;
      const auto engine = fixture_.engine();
      EngineLog log;
      std::vector<int64_t> ids;
      for (const Request& request : requests) {
        EngineRequest asked = log.watch(request);
        if (random() % 2 == 0) asked.prompt_lookup.emplace();
        ids.push_back(engine->submit(asked));
      }
      while (engine->step()) {
        engine->check_invariants();
        if (random() % 9 == 0) engine->preempt(ids[random() % ids.size()]);
      }
      for (size_t i = 0; i < ids.size(); ++i)
        expect_result(log.of(ids[i]), expected[i],
                      str(scheduler_name(kind), ", budget ", budget, ", request ", i));
      expect_all_free(*engine);
      preemptions += engine->stats().preemptions;
    }
  }
  EXPECT_GT(preemptions, 20);
  EXPECT_EQ(fixture_.spy->different(), 0);
  EXPECT_GT(fixture_.spy->compared(), 200);
}

}  // namespace
}  // namespace larder::test
