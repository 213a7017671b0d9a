// --weights and --cache-weights, as a user meets them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

CommandResult generate(const std::string& model, const Arguments& more) {
  Arguments all = {"generate", "-m", model,       "--prompt", "To be",
                   "-n",       "8",  "--threads", "1",        "--json"};
  all.insert(all.end(), more.begin(), more.end());
  return run_larder(all);
}

TEST(WeightFlags, CodesAreKeptWhenAskedAndGiveTheSameTokens) {
  TempFolder folder;
  for (const auto& entry : fs::directory_iterator(toy_folder("toy-llama")))
    fs::copy_file(entry.path(), folder.path() / entry.path().filename());
  for (const std::string format : {"int8", "int4"}) {
    const CommandResult plain = generate(folder.path(), {"--weights", format});
    ASSERT_EQ(plain.code, 0) << plain.err;
    const fs::path file = folder / ("larder-weights-" + format + ".safetensors");
    EXPECT_FALSE(fs::exists(file));
    for (int run = 0; run < 2; ++run) {
      const CommandResult kept = generate(folder.path(), {"--weights", format, "--cache-weights"});
      ASSERT_EQ(kept.code, 0) << kept.err;
      EXPECT_EQ(kept.err.find("note"), std::string::npos) << kept.err;
      EXPECT_EQ(parse_json(kept.out, "out").at("text"), parse_json(plain.out, "out").at("text"));
      EXPECT_TRUE(fs::exists(file));
    }
  }
}

TEST(WeightFlags, EveryArchitectureTakesThem) {
  for (const char* name : {"mamba-micro", "recurrentgemma-micro", "gemma2-micro", "llama-micro"}) {
    const CommandResult result = run_larder(
        {"generate", "-m", source_path(std::string("tests/data/conformance/models/") + name),
         "--prompt-ids", "5,6,7", "-n", "4", "--weights", "int4"});
    EXPECT_EQ(result.code, 0) << name << ": " << result.err;
  }
}

TEST(WeightFlags, ThatMakeNoSenseAreRefusedInOneLine) {
  for (const auto& [flags, text] : {std::pair<Arguments, std::string>{
                                        {"--weights", "int5"}, "is not one of stored, int8, int4"},
                                    {{"--cache-weights"}, "give --weights int8 or int4"}}) {
    const CommandResult result = generate(toy_folder("toy-llama"), flags);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace larder::test
