// The cache's cost from config.json alone, against the figures of tests/data/configs/index.json.
#include "larder/models/kv_plan.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/models/scratch_plan.h"
#include "tests/support/source_dir.h"

namespace larder {
namespace {

std::filesystem::path folder() { return test::source_path("tests/data/configs"); }

TEST(KVPlan, BytesOfEveryConfigAreThoseOfTheIndex) {
  const Json index = parse_json(read_file(folder() / "index.json"), "index.json");
  int compared = 0;
  for (const auto& [name, entry] : index.items()) {
    SCOPED_TRACE(name);
    const auto file = entry["file"].get<std::string>();
    const Json config = parse_json(read_file(folder() / file), file);
    const Json& want = entry["kv"];
    if (want.is_object() && want.contains("latent_bytes_per_token_per_layer")) {
      EXPECT_THROW(read_kv_plan_config(config, name), Error);
      continue;
    }
    const KVPlanConfig got = read_kv_plan_config(config, name);
    ++compared;
    std::vector<int64_t> windows;  // as the model itself has them, where larder runs it
    for (const LayerSpec& spec : got.layers)
      if (spec.kind == LayerKind::kAttention) windows.push_back(spec.window);
    EXPECT_EQ(windows, got.windows);
    if (want.is_null()) {
      EXPECT_TRUE(got.windows.empty());
      continue;
    }
    EXPECT_EQ(got.bytes_per_token_per_layer(DType::kBF16), want["bytes_per_token_per_layer"]);
    EXPECT_EQ(got.bytes_per_token(DType::kBF16), want["bytes_per_token"]);
    const bool has_context = !want["context"].is_null();
    const int64_t context = has_context ? want["context"].get<int64_t>() : 8192;
    EXPECT_EQ(got.context, has_context ? context : 0);
    if (has_context) {
      EXPECT_EQ(got.full_bytes(context, DType::kBF16), want["dynamic_bytes_at_context"]);
    }
    EXPECT_EQ(got.windowed_bytes(context, DType::kBF16), want["hybrid_bytes_at_context"]);
  }
  EXPECT_EQ(compared, 33);
}

TEST(KVPlan, ScratchIsBoundedWhereTheFileNamesTheSizes) {
  const Json index = parse_json(read_file(folder() / "index.json"), "index.json");
  int bounded = 0;
  for (const auto& [name, entry] : index.items()) {
    if (entry["kv"].is_object() && entry["kv"].contains("latent_bytes_per_token_per_layer"))
      continue;  // no plan at all
    const auto file = entry["file"].get<std::string>();
    const Json config = parse_json(read_file(folder() / file), file);
    const auto bytes = planned_scratch_bytes(config, name, {1, 4096, 2});
    if (!bytes) continue;
    ++bounded;
    const Json text = config.contains("text_config") ? config["text_config"] : config;
    if (text.contains("hidden_size")) {
      EXPECT_GT(*bytes, int64_t{4} * 512 * text["hidden_size"].get<int64_t>()) << name;
    }
  }
  EXPECT_GT(bounded, 20);
  EXPECT_FALSE(planned_scratch_bytes(parse_json(R"({"num_hidden_layers": 2, "head_dim": 8,
      "num_key_value_heads": 2})",
                                                "config"),
                                     "config", {1, 10, 1}));
}

TEST(KVPlan, RefusesAFileWithoutSizes) {
  for (const char* text :
       {"{}", R"({"num_hidden_layers":2})",
        R"({"num_hidden_layers":2,"num_key_value_heads":1,"head_dim":5000000000})",
        R"({"num_hidden_layers":2,"layer_types":["full_attention"]})"})
    EXPECT_THROW(read_kv_plan_config(parse_json(text, "config"), "config"), Error) << text;
}

}  // namespace
}  // namespace larder
