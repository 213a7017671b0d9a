// Generation with text: the shipped models against their reference results, and stop strings (case
// 43).
#include <gtest/gtest.h>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/generate/text_stream.h"
#include "tests/support/logits_run.h"

#ifdef LARDER_HAS_TEXT
namespace larder::test {
namespace {

class ToyReference : public ::testing::TestWithParam<std::string> {
 protected:
  HostAllocator host_;
  std::shared_ptr<const Model> model_ = Model::load(toy_folder(GetParam()), DType::kF32, host_);
  Tokenizer tokenizer_ = Tokenizer::load(toy_folder(GetParam()));
};
INSTANTIATE_TEST_SUITE_P(Toys, ToyReference,
                         ::testing::Values("toy-llama", "toy-mistral", "toy-gemma2"),
                         [](const auto& toy) { return toy.param.substr(4); });

TEST_P(ToyReference, GreedyIdsAndTextAreTheReferences) {
  const std::string file = toy_folder("reference.json");
  int cases = 0;
  for (const Json& test : parse_json(read_file(file), file)) {
    if (test.at("model") != GetParam()) continue;
    ++cases;
    const Ids ids = tokenizer_.encode(test.at("prompt").get<std::string>(), true);
    EXPECT_EQ(ids, test.at("prompt_ids").get<Ids>());
    const Json& greedy = test.at("greedy");
    for (const char* cache : {"dynamic", "static"}) {
      for (const AttentionKind attention : {AttentionKind::kFused, AttentionKind::kEager}) {
        Session session(model_, {cache, DType::kF32, 400, attention, 2, {}}, host_);
        GenerationOptions options;
        options.make_text = stream_text(tokenizer_);
        std::string streamed;
        options.on_token = [&](const TokenEvent& event) {
          streamed.append(event.text);
          return true;
        };
        const Result result = generate(
            session,
            {ids, greedy.at("max_new_tokens"), {}, {test.at("eos_token_id").get<int32_t>()}, {}},
            options);
        EXPECT_EQ(result.output_ids, greedy.at("output_ids").get<Ids>()) << cache;
        EXPECT_EQ(result.text, greedy.at("output_text").get<std::string>());
        EXPECT_EQ(streamed, result.text);
      }
    }
  }
  EXPECT_EQ(cases, 4);
}

class StopStrings : public ::testing::Test {
 protected:
  Result run(std::vector<std::string> stops, std::string* streamed = nullptr) {
    Session session(model_, {}, host_);
    GenerationOptions options;
    options.make_text = stream_text(tokenizer_);
    if (streamed) {
      options.on_token = [streamed](const TokenEvent& event) {
        streamed->append(event.text);
        return true;
      };
    }
    return generate(
        session,
        {tokenizer_.encode("HAMLET.\nTo be, or not to be,", true), 30, {}, {2}, std::move(stops)},
        options);
  }

  HostAllocator host_;
  std::shared_ptr<const Model> model_ = Model::load(toy_folder("toy-llama"), DType::kF32, host_);
  Tokenizer tokenizer_ = Tokenizer::load(toy_folder("toy-llama"));
};

// Without stops the text is " and I will not.\n\n[Exeunt.]".
TEST_F(StopStrings, Case43_TheTextEndsBeforeTheStopInBothForms) {
  for (const auto& [stops, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"l not.\n"}, " and I wil"},
           {{"I w", "and I"}, " "},
           {{"not.\n\n[Exeunt.]!", "xeu"}, " and I will not.\n\n[E"},
           {{"HAMLET", "To be"}, " and I will not.\n\n[Exeunt.]"},
           {{"t.]x"}, " and I will not.\n\n[Exeunt.]"},
           {{" "}, ""}}) {
    std::string streamed;
    const Result result = run(stops, &streamed);
    EXPECT_EQ(result.text, expected);
    EXPECT_EQ(streamed, expected);
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  }
}

TEST_F(StopStrings, Case43_GenerationEndsWithTheTokenThatCompletesTheStop) {
  EXPECT_EQ(run({" and"}).output_ids.size(), 1u);
  EXPECT_LT(run({"will"}).output_ids.size(), run({}).output_ids.size());
}

}  // namespace
}  // namespace larder::test
#endif
