#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "larder/base/json.h"
#include "larder/tensor/safetensors.h"
#include "tests/support/temp_folder.h"
#include "tools/command.h"
#include "tools/kv_size.h"

namespace larder::tools {
namespace {

using test::TempFolder;

std::string inspect(std::vector<std::string> arguments) {
  CLI::App app;
  std::function<int()> action;
  add_inspect(app, action);
  arguments.insert(arguments.begin(), "inspect");
  std::ranges::reverse(arguments);
  app.parse(arguments);
  std::ostringstream text;
  std::streambuf* console = std::cout.rdbuf(text.rdbuf());
  try {
    const int code = action();
    std::cout.rdbuf(console);
    return code == 0 ? text.str() : "FAILED";
  } catch (...) {
    std::cout.rdbuf(console);
    throw;
  }
}

void write_weights(const std::filesystem::path& path) {
  const std::vector<uint16_t> halves(12);
  const std::vector<float> floats(2);
  write_safetensors(
      path,
      {{"w\x1b[31m", DType::kBF16, {3, 4}, halves.data()}, {"b", DType::kF32, {2}, floats.data()}},
      {{"format", "pt"}});
}

constexpr const char* kUnknown = R"({"architectures":["NewForCausalLM"],"model_type":"new",
  "num_hidden_layers":4,"hidden_size":48,"num_attention_heads":6,"num_key_value_heads":2,
  "max_position_embeddings":100,"torch_dtype":"float16"})";

TEST(Inspect, ShowsAFolderOfAnyArchitecture) {
  const TempFolder folder;
  write_weights(folder / "model.safetensors");
  folder.write("config.json", kUnknown);
  const std::string text = inspect({folder.path().string()});
  EXPECT_NE(text.find("2 tensors in 1 file, 14 elements, 32 B"), std::string::npos) << text;
  EXPECT_NE(text.find("NewForCausalLM, layers 4"), std::string::npos) << text;
  EXPECT_NE(text.find("KV cache: 256 bytes a token in f16, 25.6 kB for a context of 100"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("w?[31m"), std::string::npos) << "control bytes are masked: " << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("metadata: format = pt"), std::string::npos);
}

TEST(Inspect, JsonSaysTheSameForMachines) {
  const TempFolder folder;
  write_weights(folder / "model.safetensors");
  folder.write("config.json", kUnknown);
  const Json json = parse_json(inspect({"--json", folder.path().string()}), "output");
  EXPECT_EQ(json["total_tensors"], 2);
  EXPECT_EQ(json["total_bytes"], 32);
  EXPECT_EQ(json["bytes_by_dtype"]["bf16"], 24);
  EXPECT_EQ(json["tensors"][1]["name"], "w\x1b[31m");
  EXPECT_EQ(json["tensors"][1]["shape"], Json::array({3, 4}));
  EXPECT_EQ(json["config"]["kv_bytes_per_token"], 256);
  EXPECT_EQ(json["metadata"]["format"], "pt");
}

TEST(Inspect, ShowsASingleFileWithoutAConfig) {
  const TempFolder folder;
  write_weights(folder / "x.safetensors");
  const Json json = parse_json(inspect({(folder / "x.safetensors").string(), "--json"}), "output");
  EXPECT_TRUE(json["config"].is_null());
  EXPECT_EQ(json["total_elements"], 14);
}

TEST(Inspect, RefusesWhatCannotBeRead) {
  const TempFolder folder;
  EXPECT_NE(test::error_text([&] { inspect({(folder / "absent").string()}); }).find("cannot open"),
            std::string::npos);
  EXPECT_NE(test::error_text([&] { inspect({folder.path().string()}); }).find("neither"),
            std::string::npos);
}

TEST(KvSize, AbsentAndNullKeyHeadsAreTheFamilys) {
  const auto bytes = [](const char* text) {
    return summarize_config(parse_json(text, "c"), "c").kv_bytes_per_token(DType::kF32);
  };
  EXPECT_EQ(bytes(R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":64,
    "num_attention_heads":16})"),
            2 * 4 * 16 * 4);
  EXPECT_EQ(bytes(R"({"model_type":"mistral","num_hidden_layers":1,"hidden_size":64,
    "num_attention_heads":16})"),
            2 * 4 * 8 * 4);
  EXPECT_EQ(bytes(R"({"model_type":"mistral","num_hidden_layers":1,"hidden_size":64,
    "num_attention_heads":16,"num_key_value_heads":null})"),
            2 * 4 * 16 * 4);
  EXPECT_EQ(bytes(R"({"model_type":"gemma2","num_hidden_layers":2,"hidden_size":64,
    "num_attention_heads":16})"),
            2 * 4 * 2 * 4 * 256);
  EXPECT_EQ(bytes(R"({"num_hidden_layers":9223372036854775807,"num_attention_heads":2,
    "hidden_size":4})"),
            std::nullopt)
      << "a product past 64 bits";
  EXPECT_EQ(bytes("{}"), std::nullopt);
}

}  // namespace
}  // namespace larder::tools
