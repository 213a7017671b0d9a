// Beam search and speculation, as a user of `larder generate` meets them.
#include <gtest/gtest.h>

#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

const Arguments kGenerate = {"generate", "-m", toy_folder("toy-llama"), "-p", "To be, or not",
                             "-n",       "24"};

CommandResult generate(const Arguments& more) {
  Arguments all = kGenerate;
  all.insert(all.end(), more.begin(), more.end());
  return run_larder(all);
}

Json json_of(Arguments more) {
  more.emplace_back("--json");
  const CommandResult result = generate(more);
  EXPECT_EQ(result.code, 0) << result.err;
  return parse_json(result.out, "the output");
}

TEST(Beams, JsonHoldsTheSequencesWithTheirScoresBestFirst) {
  const Json json = json_of({"--num-beams", "4", "--num-return-sequences", "3"});
  const Json& sequences = json.at("sequences");
  ASSERT_EQ(sequences.size(), 3u);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_GE(sequences[i - 1].at("score"), sequences[i].at("score"));
    EXPECT_NE(sequences[i - 1].at("output_ids"), sequences[i].at("output_ids"));
  }
  EXPECT_EQ(json.at("output_ids"), sequences[0].at("output_ids"));
  EXPECT_EQ(json.at("text"), sequences[0].at("text"));
  EXPECT_EQ(json.at("timing").at("new_tokens"), 24);
  EXPECT_FALSE(json_of({}).contains("sequences"));
}

TEST(Beams, TextOfSeveralSequencesIsParted) {
  const Json json = json_of({"--num-beams", "3", "--num-return-sequences", "2"});
  const CommandResult two = generate({"--num-beams", "3", "--num-return-sequences", "2"});
  const std::string first = json.at("sequences")[0].at("text"),
                    second = json.at("sequences")[1].at("text");
  EXPECT_TRUE(two.out.starts_with("=== 1 of 2, score -")) << two.out;
  EXPECT_NE(two.out.find(first + "\n\n=== 2 of 2, score -"), std::string::npos) << two.out;
  EXPECT_TRUE(two.out.ends_with(second + "\n")) << two.out;
  EXPECT_EQ(generate({"--num-beams", "3"}).out, first + "\n") << "one has no heading";
}

TEST(Beams, LengthPenaltyAndEarlyStoppingReachTheSearch) {
  const Json one = json_of({"--num-beams", "3", "--early-stopping", "never"});
  const Json two =
      json_of({"--num-beams", "3", "--early-stopping", "never", "--length-penalty", "0"});
  EXPECT_LT(two.at("sequences")[0].at("score").get<double>(),
            one.at("sequences")[0].at("score").get<double>())
      << "a sum is below its mean";
}

TEST(Beams, NoNewTokensGiveAnEmptySequence) {
  Arguments none = kGenerate;
  none.back() = "0";
  for (const char* more : {"--num-beams", "2", "--json"}) none.emplace_back(more);
  const Json json = parse_json(run_larder(none).out, "the output");
  ASSERT_EQ(json.at("sequences").size(), 1u);
  EXPECT_TRUE(json.at("sequences")[0].at("output_ids").empty());
}

TEST(Speculation, GuessesChangeNoTokenAndAreCounted) {
  const Json plain = json_of({});
  EXPECT_FALSE(plain.contains("speculation"));
  for (const Arguments& how :
       {Arguments{"--prompt-lookup", "6"}, Arguments{"--draft-model", toy_folder("toy-mistral")},
        Arguments{"--draft-model", toy_folder("toy-llama"), "--cache", "static"}}) {
    const Json json = json_of(how);
    EXPECT_EQ(json.at("output_ids"), plain.at("output_ids")) << how[0];
    const Json& counts = json.at("speculation");
    EXPECT_GE(counts.at("drafted_tokens"), counts.at("accepted_tokens"));
    EXPECT_GT(counts.at("drafted_tokens"), 0);
  }
  const CommandResult text = generate({"--draft-model", toy_folder("toy-llama")});
  EXPECT_NE(text.err.find("20 drafted and 20 accepted"), std::string::npos) << text.err;
  EXPECT_EQ(text.out, plain.at("text").get<std::string>() + "\n");
}

TEST(Speculation, SampledTextStaysThatOfItsSeed) {
  const Arguments sampled = {"--temperature", "0.8", "--seed", "4"};
  Arguments guessed = sampled;
  guessed.insert(guessed.end(), {"--draft-model", toy_folder("toy-mistral")});
  EXPECT_EQ(json_of(guessed).at("output_ids"), json_of(sampled).at("output_ids"));
}

TEST(Speculation, ADraftModelOfAnotherVocabularyIsRefusedWithBothNumbers) {
  const TempFolder folder;
  TinyModel().write(folder.path());
  const CommandResult result = generate({"--draft-model", folder.path().string()});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("vocabulary of 32 ids, the model one of 2048"), std::string::npos)
      << result.err;
}

TEST(Case45, FlagsThatContradictEachOtherAreOneLine) {
  const auto refused = [](const Arguments& more, const std::string& text) {
    const CommandResult result = generate(more);
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_EQ(result.out, "");
  };
  refused({"--num-beams", "2", "--num-return-sequences", "3"}, "num_return_sequences is 3");
  refused({"--num-return-sequences", "2"}, "at most num_beams, which is 1");
  refused({"--num-beams", "0"}, "num_beams is 0");
  refused({"--num-beams", "-1"}, "num_beams is -1");
  refused({"--num-beams", "2", "--length-penalty", "nan"}, "length_penalty is nan");
  refused({"--num-beams", "2", "--early-stopping", "yes"}, "\"yes\", must be true, false or never");
  refused({"--early-stopping", "true"}, "--early-stopping needs --num-beams");
  refused({"--num-beams", "2", "--temperature", "0.5"}, "does not sample");
  refused({"--num-beams", "2", "--stop", "x"}, "--stop cannot be used with --num-beams");
  refused({"--num-beams", "2", "--prompt-lookup", "4"}, "cannot be used with --num-beams");
  refused({"--prompt-lookup", "0"}, "prompt_lookup_num_tokens is 0");
  refused({"--prompt-lookup", "4", "--draft-model", "x"}, "not both");
  refused({"--num-beams", "3000"}, "vocabulary's 2048 ids");
}

}  // namespace
}  // namespace larder::test
