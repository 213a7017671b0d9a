// Text and stop strings of many requests at once (case 43).
#include <gtest/gtest.h>

#include "larder/generate/text_stream.h"
#include "tests/support/engine_fixture.h"

#ifdef LARDER_HAS_TEXT
namespace larder::test {
namespace {

TEST(EngineText, Case43_StopStringsEndTheirOwnRequestWithTheTextItHasAlone) {
  const Tokenizer tokenizer = Tokenizer::load(toy_folder("toy-llama"));
  EngineFixture fixture("toy-llama");
  fixture.options.make_text = stream_text(tokenizer);
  fixture.options.scheduler.max_tokens_per_step = 7;
  const Ids prompt = tokenizer.encode("HAMLET.\nTo be, or not to be,", true);
  std::vector<Request> requests;
  for (const std::vector<std::string>& stops :
       std::vector<std::vector<std::string>>{{}, {"l not.\n"}, {"I w", "and I"}, {"xeu"}, {" "}})
    requests.push_back({prompt, 30, {}, {2}, stops});
  std::vector<Result> expected;
  for (const Request& request : requests) expected.push_back(fixture.alone(request));
  EXPECT_EQ(expected[1].text, " and I wil");
  for (int preempted = 0; preempted < 20; ++preempted) {
    const auto engine = fixture.engine();
    EngineLog log;
    std::vector<int64_t> ids;
    for (const Request& request : requests) ids.push_back(engine->submit(log.watch(request)));
    for (int step = 0; engine->step(); ++step)
      for (const int64_t id : ids)
        if (step == preempted) engine->preempt(id);
    for (size_t i = 0; i < ids.size(); ++i)
      expect_result(log.of(ids[i]), expected[i], str("stops ", i, ", preempted ", preempted));
  }
}

class BadText final : public TokenText {
 public:
  std::string push(int32_t /*id*/) override { throw std::runtime_error("no such token"); }
  std::string finish() override { return ""; }
};

TEST(EngineText, Case28_TextThatCannotBeMadeEndsItsOwnRequestAlone) {
  EngineFixture fixture("llama-micro");
  const Request good = fixture.ask({5, 6, 7}, 4);
  const Result expected = fixture.alone(good);
  fixture.options.make_text = [](std::span<const int32_t> prompt) -> std::unique_ptr<TokenText> {
    if (prompt[0] == 9) return std::make_unique<BadText>();
    return nullptr;
  };
  const auto engine = fixture.engine();
  EngineLog log;
  const int64_t bad = engine->submit(log.watch(fixture.ask({9, 4}, 4))),
                other = engine->submit(log.watch(good));
  run_checked(*engine);
  EXPECT_EQ(log.of(bad).result.finish_reason, FinishReason::kError);
  EXPECT_EQ(log.of(bad).error, "no such token");
  expect_result(log.of(other), expected, "the other");
  expect_all_free(*engine);
}

}  // namespace
}  // namespace larder::test
#endif
