// --save-cache and --load-cache: a conversation that goes on without prefill.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/json.h"
#include "larder/cache/registry.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

class CacheFilesOfGenerate : public ::testing::TestWithParam<std::string> {
 protected:
  Json generate(const Arguments& more) const {
    Arguments arguments = {"generate",        "-m",  toy_folder("toy-llama"), "--cache", GetParam(),
                           "--max-cache-len", "100", "--ignore-eos",          "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = run_larder(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return parse_json(result.out, "the output");
  }
  static std::vector<int32_t> ids(const Json& report) { return report.at("output_ids"); }

  TempFolder folder_;
  const std::string path_ = (folder_ / "talk.safetensors").string();
};
INSTANTIATE_TEST_SUITE_P(Registry, CacheFilesOfGenerate,
                         ::testing::ValuesIn(CacheRegistry().names()));

TEST_P(CacheFilesOfGenerate, Case38_TheNextTwentyTokensAreThoseWithoutTheDetour) {
  const Arguments prompt = {"-p", "HAMLET.\nTo be, or not to be,"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), prompt.begin(), prompt.end());
    return more;
  };
  std::vector<int32_t> first = ids(generate(with({"-n", "20", "--save-cache", path_})));
  const std::vector<int32_t> straight = ids(generate(with({"-n", "40"})));
  const std::vector<int32_t> rest = ids(generate({"-n", "20", "--load-cache", path_}));
  first.insert(first.end(), rest.begin(), rest.end());
  EXPECT_EQ(first, straight);
}

TEST_P(CacheFilesOfGenerate, APromptIsAddedToTheTokensOfTheFile) {
  if (GetParam().find("quantized") != std::string::npos)
    GTEST_SKIP() << "the tokens before it would have been fed in other pieces";
  const std::vector<int32_t> made =
      ids(generate({"--prompt-ids", "5,6,7", "-n", "4", "--save-cache", path_}));
  const Json loaded =
      generate({"--load-cache", path_, "--prompt-ids", "9,10", "-n", "12", "--save-cache", path_});
  std::vector<int32_t> all = {5, 6, 7};
  all.insert(all.end(), made.begin(), made.end());
  all.insert(all.end(), {9, 10});
  EXPECT_EQ(loaded.at("prompt_ids").get<std::vector<int32_t>>(), all);
  EXPECT_EQ(ids(loaded), ids(generate({"--prompt-ids", join(all, ","), "-n", "12"})));
}

TEST(LoadCache, RefusesOtherWeightFormats) {
  const TempFolder folder;
  const std::string path = (folder / "talk.safetensors").string();
  const auto generate = [&](const Arguments& more) {
    Arguments arguments = {"generate", "-m", toy_folder("toy-llama"), "-p", "To", "-n", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_larder(arguments);
  };
  ASSERT_EQ(generate({"--weights", "int8", "--save-cache", path}).code, 0);
  EXPECT_EQ(generate({"--weights", "int8", "--load-cache", path}).code, 0);
  for (const char* format : {"stored", "int4"}) {
    const CommandResult result = generate({"--weights", format, "--load-cache", path});
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("other weights"), std::string::npos) << result.err;
  }
}

TEST(LoadCache, RefusesAnotherModelInOneLine) {
  const TempFolder folder;
  const std::string path = (folder / "talk.safetensors").string();
  ASSERT_EQ(run_larder({"generate", "-m", toy_folder("toy-llama"), "-p", "To", "-n", "2",
                        "--save-cache", path})
                .code,
            0);
  const CommandResult result = run_larder(
      {"generate", "-m", toy_folder("toy-mistral"), "-p", "be", "-n", "2", "--load-cache", path});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("it comes from another model: "), std::string::npos) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

}  // namespace
}  // namespace larder::test
