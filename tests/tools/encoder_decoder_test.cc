// The command over a model with an encoder, as a user meets it.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/source_dir.h"

namespace larder::test {
namespace {

const std::string kModel = source_path("tests/data/conformance/models/t5-micro");

CommandResult generate(std::vector<std::string> flags) {
  std::vector<std::string> all = {"generate", "-m", kModel, "--prompt-ids", "113,148,27,2,60"};
  all.insert(all.end(), flags.begin(), flags.end());
  return run_larder(all);
}

TEST(GenerateEncoderDecoder, ThePromptIsTheSourceAndEndsAreTheModels) {
  const CommandResult plain = generate({"-n", "9", "--json", "--ignore-eos"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  const Json found = parse_json(plain.out, "the output");
  EXPECT_EQ(found.at("prompt_ids"), Json({113, 148, 27, 2, 60}));
  EXPECT_EQ(found.at("output_ids").size(), 9u);
  EXPECT_EQ(found.at("timing").at("prompt_tokens"), 5);
  for (const char* cache : {"static", "encoder_decoder", "offloaded"}) {
    const CommandResult other = generate({"-n", "9", "--json", "--ignore-eos", "--cache", cache});
    ASSERT_EQ(other.code, 0) << other.err;
    EXPECT_EQ(parse_json(other.out, cache).at("output_ids"), found.at("output_ids"));
  }
  const CommandResult beams = generate({"-n", "9", "--json", "--num-beams", "3"});
  ASSERT_EQ(beams.code, 0) << beams.err;
  EXPECT_EQ(parse_json(beams.out, "beams").at("sequences").size(), 1u);
}

TEST(GenerateEncoderDecoder, GuessesAreRefusedInOneLine) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--prompt-lookup", "3"}, {"--draft-model", kModel}}) {
    const CommandResult result = generate(flags);
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("encoder"), std::string::npos) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
}

TEST(BenchEncoderDecoder, IsRefusedInOneLine) {
  const CommandResult result = run_larder({"bench", "-m", kModel});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("reads a source beside the text"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace larder::test
