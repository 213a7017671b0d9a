// larder plan: to the byte what the allocator hands out.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/json.h"
#include "larder/cache/registry.h"
#include "larder/models/kv_plan.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/source_dir.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

Json json_of(const Arguments& arguments) {
  const CommandResult result = run_larder(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return parse_json(result.out, "the output");
}

// A prompt of `count` ids.
std::string prompt(int count) {
  std::string ids = "5";
  for (int i = 1; i < count; ++i) ids += str(",", 4 + i % 50);
  return ids;
}

TEST(Plan, KvBytesAreThoseThatTheAllocatorHandsOut) {
  const std::vector<std::string> registered = CacheRegistry().names();
  const bool rings = std::ranges::find(registered, "sliding_window") != registered.end();
  for (const std::string model : {"toy-llama", "toy-mistral", "toy-gemma2"}) {
    if (model != "toy-llama" && !rings) continue;
    for (const std::string_view kind : planned_kinds()) {
      const std::string name(kind);
      if (std::ranges::find(registered, name) == registered.end()) continue;
      for (const int tokens : {1, 64, 100}) {
        const Json run = json_of({"generate", "-m", toy_folder(model), "--cache", name,
                                  "--max-cache-len", std::to_string(tokens), "--prompt-ids",
                                  prompt(tokens), "-n", "1", "--dtype", "bf16", "--json"});
        const Json plan = json_of({"plan", "-m", toy_folder(model), "--cache", name, "--context",
                                   std::to_string(tokens), "--json"});
        EXPECT_EQ(plan.at("caches").at(name).at("kv_bytes"), run.at("memory").at("kv_bytes"))
            << model << " " << name << " " << tokens;
      }
    }
  }
}

TEST(Plan, TheLongestContextFitsAndOneMoreDoesNot) {
  for (const std::string_view kind : planned_kinds()) {
    const std::string name(kind);
    const auto plan = [&](int64_t context) {
      return json_of({"plan", "-m", toy_folder("toy-llama"), "--cache", name, "--budget", "2500000",
                      "--batch", "3", "--context", std::to_string(context), "--json"});
    };
    const Json first = plan(100);
    const int64_t most = first.at("caches").at(name).at("max_context");
    const int64_t left = 2500000 - first.at("weights_bytes").get<int64_t>();
    ASSERT_GT(most, 0);
    EXPECT_LE(plan(most).at("caches").at(name).at("kv_bytes"), left);
    EXPECT_GT(plan(most + 1).at("caches").at(name).at("kv_bytes"), left);
  }
}

TEST(Plan, PlansWhatCannotRun) {
  const std::string configs = source_path("tests/data/configs/");
  const Json plan = json_of({"plan", "-m", configs + "gpt-oss-20b.json", "--json"});
  EXPECT_EQ(plan.at("kv_full_bytes"), 6442450944);
  EXPECT_EQ(plan.at("kv_windowed_bytes"), 3224371200);
  EXPECT_TRUE(plan.at("weights_bytes").is_null());
  const CommandResult text = run_larder({"plan", "-m", configs + "gpt-oss-20b.json"});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("context 131072, batch 1"), std::string::npos) << text.out;
}

TEST(Plan, RefusesWhatMakesNoSense) {
  const std::string model = toy_folder("toy-llama");
  for (const Arguments& more : {Arguments{"--batch", "0"},
                                {"--context", "-1"},
                                {"--cache", "x"},
                                {"--cache-dtype", "i8"},
                                {"--budget", "many"}}) {
    Arguments all = {"plan", "-m", model};
    all.insert(all.end(), more.begin(), more.end());
    const CommandResult result = run_larder(all);
    EXPECT_EQ(result.code, 2) << more[0];
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace larder::test
