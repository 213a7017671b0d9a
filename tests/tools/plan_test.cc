// larder plan: to the byte what the allocator hands out.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/json.h"
#include "larder/cache/registry.h"
#include "larder/models/kv_plan.h"
#include "larder/models/model.h"
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

TEST(Plan, WeightsAsCodesAreToTheByteWhatLoadingTakes) {
  for (const std::string format : {"int8", "int4"}) {
    for (const std::string model : {"toy-llama", "toy-gemma2"}) {
      const Json plan = json_of({"plan", "-m", toy_folder(model), "--weights", format, "--cache",
                                 "dynamic", "--context", "100", "--json"});
      HostAllocator host;
      TrackingAllocator tracking(host);
      LoadOptions options;
      options.weights = *weight_format_from_name(format);
      Model::load(toy_folder(model), options, tracking);
      EXPECT_EQ(plan.at("weights_bytes"), tracking.of("weights").peak) << model << " " << format;
      EXPECT_EQ(plan.at("weights"), format);
      const Json run =
          json_of({"generate", "-m", toy_folder(model), "--weights", format, "--prompt-ids",
                   prompt(90), "-n", "10", "--dtype", "f32", "--json"});
      EXPECT_LE(run.at("memory").at("scratch_bytes"),
                plan.at("caches").at("dynamic").at("scratch_bytes"));
    }
  }
  const CommandResult refused =
      run_larder({"plan", "-m", toy_folder("toy-llama"), "--weights", "int5"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--weights \"int5\" is not one of stored, int8, int4"),
            std::string::npos)
      << refused.err;
}

TEST(Plan, KvBytesAreThoseThatTheAllocatorHandsOut) {
  const std::vector<std::string> registered = CacheRegistry().names();
  const bool rings = std::ranges::find(registered, "sliding_window") != registered.end();
  for (const std::string model : {"toy-llama", "toy-mistral", "toy-gemma2"}) {
    if (model != "toy-llama" && !rings) continue;
    for (const std::string_view kind : planned_kinds()) {
      const std::string name(kind);
      if (std::ranges::find(registered, name) == registered.end()) continue;
      for (const int tokens : {1, 100, 600}) {
        const Json run = json_of({"generate", "-m", toy_folder(model), "--cache", name,
                                  "--max-cache-len", std::to_string(tokens), "--prompt-ids",
                                  prompt(tokens), "-n", "1", "--dtype", "bf16", "--json"});
        const Json plan = json_of({"plan", "-m", toy_folder(model), "--cache", name, "--context",
                                   std::to_string(tokens), "--json"});
        const Json& memory = run.at("memory");
        const Json& of_kind = plan.at("caches").at(name);
        EXPECT_EQ(of_kind.at("kv_bytes"), memory.at("kv_bytes"))
            << model << " " << name << " " << tokens;
        EXPECT_GE(of_kind.at("scratch_bytes"), memory.at("scratch_bytes"))
            << model << " " << name << " " << tokens;
      }
    }
  }
}

TEST(Plan, StatesAndCrossLayersAreThoseThatTheAllocatorHandsOut) {
  const std::string micro = source_path("tests/data/conformance/models/");
  const auto expect_same = [](const std::string& model, const std::string& kind, int tokens,
                              const Arguments& more) {
    const Json run = json_of({"generate", "-m", model, "--cache", kind, "--prompt-ids",
                              prompt(tokens), "-n", "1", "--dtype", "bf16", "--json"});
    Arguments plan = {"plan", "-m", model, "--cache", kind, "--json"};
    plan.insert(plan.end(), more.begin(), more.end());
    EXPECT_EQ(json_of(plan).at("caches").at(kind).at("kv_bytes"), run.at("memory").at("kv_bytes"))
        << model << " " << kind << " " << tokens;
  };
  for (const int tokens : {1, 100}) {
    const std::string count = std::to_string(tokens);
    for (const char* kind : {"mamba", "paged", "offloaded"})
      expect_same(micro + "mamba-micro", kind, tokens, {"--context", count});
    for (const char* kind : {"recurrent", "dynamic_full", "offloaded"})
      expect_same(micro + "recurrentgemma-micro", kind, tokens, {"--context", count});
    // The start token is the decoder's only one.
    for (const char* kind : {"encoder_decoder", "quantized"})
      expect_same(micro + "t5-micro", kind, tokens, {"--context", "1", "--source", count});
  }
}

TEST(Plan, ThePoolOfAPagedCacheHoldsTheRowsOrIsRefused) {
  const auto plan = [](const std::string& config, const std::string& batch) {
    return json_of({"plan", "-m", toy_folder("toy-llama"), "--context", "5000", "--batch", batch,
                    "--cache", "paged", "--cache-config", config, "--json"});
  };
  const Json pool = plan("{}", "3").at("caches").at("paged").at("pool").at(0);
  EXPECT_EQ(pool.at("num_blocks"), 3 * 313 * 4) << "of 16 tokens, in 4 layers";
  EXPECT_EQ(pool.at("most_taken"), 3 * 313 * 4);
  const CommandResult refused =
      run_larder({"plan", "-m", toy_folder("toy-llama"), "--context", "5000", "--cache", "paged",
                  "--cache-config", R"({"num_blocks": 312})"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("the paged pool is full: all 1248 blocks"), std::string::npos)
      << refused.err;
  const Json budget =
      json_of({"plan", "-m", toy_folder("toy-llama"), "--cache", "paged", "--cache-config",
               R"({"num_blocks": 20})", "--budget", "100M", "--context", "100", "--json"});
  EXPECT_EQ(budget.at("caches").at("paged").at("max_context"), 320);
}

// With prompts of a full step, so that the bound is not that of a longer one.
TEST(Plan, ScratchIsBelowTwiceWhatAGenerationTakes) {
  const std::string micro = source_path("tests/data/conformance/models/");
  for (const auto& [model, length] : {std::pair{toy_folder("toy-llama"), 700},
                                      {toy_folder("toy-mistral"), 100},
                                      {toy_folder("toy-gemma2"), 700},
                                      {micro + "mamba-micro", 300},
                                      {micro + "recurrentgemma-micro", 300},
                                      {micro + "t5-micro", 300}}) {
    for (const std::string dtype : {"f32", "bf16"}) {
      const Json run = json_of({"generate", "-m", model, "--prompt-ids", prompt(length), "-n", "2",
                                "--dtype", dtype, "--threads", "2", "--json"});
      const Json plan = json_of({"plan", "-m", model, "--cache", "dynamic", "--context",
                                 std::to_string(length + 1), "--threads", "2", "--json"});
      const int64_t planned = plan.at("caches").at("dynamic").at("scratch_bytes");
      const int64_t taken = run.at("memory").at("scratch_bytes");
      EXPECT_GE(planned, taken) << model << " " << dtype;
      EXPECT_LE(planned, 2 * taken) << model << " " << dtype;
    }
  }
}

TEST(Plan, TellsWhatLiesInTheFileOfAnOffloadedCache) {
  const Json caches =
      json_of({"plan", "-m", toy_folder("toy-llama"), "--context", "1000", "--json"}).at("caches");
  EXPECT_EQ(caches.at("offloaded").at("file_bytes"), caches.at("dynamic").at("kv_bytes"));
  EXPECT_EQ(caches.at("offloaded").at("kv_bytes").get<int64_t>() * 2,
            caches.at("dynamic").at("kv_bytes").get<int64_t>())
      << "two of four layers";
  EXPECT_FALSE(caches.at("dynamic").contains("file_bytes"));
}

TEST(Plan, SettingsOfAQuantizedCacheCount) {
  const auto bytes = [&](const std::string& config) {
    const Json plan =
        json_of({"plan", "-m", toy_folder("toy-llama"), "--context", "1000", "--cache", "quantized",
                 "--cache-config", config, "-n", "100", "--json"});
    return plan.at("caches").at("quantized").at("kv_bytes").get<int64_t>();
  };
  EXPECT_LT(bytes(R"({"backend": "larder", "nbits": 2})"),
            bytes(R"({"backend": "larder", "nbits": 8})"));
}

TEST(Plan, TheLongestContextFitsAndOneMoreDoesNot) {
  for (const std::string_view kind : planned_kinds()) {
    const std::string name(kind);
    const int64_t budget = name == "paged" ? 9000000 : 6000000;  // a pool has 4096 tokens at least
    const auto plan = [&](int64_t context) {
      return json_of({"plan", "-m", toy_folder("toy-llama"), "--cache", name, "--budget",
                      std::to_string(budget), "--batch", "3", "--context", std::to_string(context),
                      "--json"});
    };
    const Json first = plan(100);
    const int64_t most = first.at("caches").at(name).at("max_context");
    const int64_t left = budget - first.at("weights_bytes").get<int64_t>();
    ASSERT_GT(most, 0);
    const auto needs = [&](int64_t context) {
      const Json of_kind = plan(context).at("caches").at(name);
      return of_kind.at("kv_bytes").get<int64_t>() + of_kind.at("scratch_bytes").get<int64_t>();
    };
    EXPECT_LE(needs(most), left);
    EXPECT_GT(needs(most + 1), left);
  }
}

TEST(Plan, PlansWhatCannotRun) {
  const std::string configs = source_path("tests/data/configs/");
  const Json plan = json_of({"plan", "-m", configs + "gpt-oss-20b.json", "--json"});
  EXPECT_EQ(plan.at("kv_full_bytes"), 6442450944);
  EXPECT_EQ(plan.at("kv_windowed_bytes"), 3224371200);
  EXPECT_TRUE(plan.at("weights_bytes").is_null());
  EXPECT_GT(plan.at("caches").at("dynamic").at("scratch_bytes"), 512 * 201088 / 64);
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
                                {"--cache-config", "{}"},
                                {"--new-tokens", "-1"},
                                {"--threads", "-1"},
                                {"--source", "0"},
                                {"--rollback", "-1", "--cache", "dynamic"},
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
