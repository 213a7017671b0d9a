// The command over models without attention, as a user meets them.
#include <gtest/gtest.h>

#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_recurrent.h"

namespace larder::test {
namespace {

TEST(GenerateRecurrent, EveryCacheNameGivesTheSameIds) {
  for (const TinyModel& tiny : {tiny_mamba(), tiny_recurrent_gemma()}) {
    const TempFolder folder;
    tiny.write(folder.path());
    Json expected;
    for (const char* cache : {"dynamic", "dynamic_full", "static", "mamba", "recurrent"}) {
      const CommandResult result =
          run_larder({"generate", "-m", folder.path().string(), "--prompt-ids", "5,6,7,8,9,10,11",
                      "-n", "12", "--ignore-eos", "--cache", cache, "--json"});
      ASSERT_EQ(result.code, 0) << result.err;
      const Json ids = parse_json(result.out, "the output").at("output_ids");
      EXPECT_EQ(ids.size(), 12u);
      if (expected.is_null()) expected = ids;
      EXPECT_EQ(ids, expected) << cache;
    }
  }
}

TEST(GenerateRecurrent, AnArchitectureThatIsNotThereNamesThoseThatAre) {
  const TempFolder folder;
  TinyModel tiny = tiny_mamba();
  tiny.config["architectures"] = {"Mamba2ForCausalLM"};
  tiny.config["model_type"] = "mamba2";
  tiny.write(folder.path());
  const CommandResult result =
      run_larder({"generate", "-m", folder.path().string(), "--prompt-ids", "5"});
  EXPECT_EQ(result.code, 2);
  for (const char* name : {"\"Mamba2ForCausalLM\"", " MambaForCausalLM", "LlamaForCausalLM",
                           "RecurrentGemmaForCausalLM"})
    EXPECT_NE(result.err.find(name), std::string::npos) << result.err;
}

}  // namespace
}  // namespace larder::test
