// A model folder's config.json and generation_config.json.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "larder/models/sizes.h"
#include "tests/models/small_config.h"

namespace larder {
namespace {

using namespace small_config;

// A folder of its own, removed at the end of the test.
class ConfigFolder : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() / str("larder_config_", info->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::filesystem::path folder_;
};

TEST_F(ConfigFolder, GenerationConfigOverridesIds) {
  write("config.json", base(kLlama).dump());
  EXPECT_EQ(read_decoder_config(folder_).eos_token_ids, std::vector<int64_t>{2});
  write("generation_config.json",
        R"({"eos_token_id": [5, 6], "pad_token_id": 0, "bos_token_id": null, "temperature": 0.6})");
  for (const auto& path : {folder_, folder_ / "config.json"}) {
    const auto config = read_decoder_config(path);
    EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{5, 6}));
    EXPECT_EQ(config.pad_token_id, 0);
    EXPECT_FALSE(config.bos_token_id);
  }
  write("generation_config.json", R"({"max_length": 4096})");
  EXPECT_EQ(read_decoder_config(folder_).bos_token_id, 1);
  EXPECT_EQ(read_decoder_config(folder_).eos_token_ids, std::vector<int64_t>{2});
}

TEST_F(ConfigFolder, UnreadableFilesAreNamed) {
  const auto line = [&] {
    try {
      read_decoder_config(folder_);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(line().find("config.json"), std::string::npos);
  for (const std::string text : {"", "{", "{\"vocab_size\": 1e999}", "nonsense", "[[[[", "{}{}"}) {
    write("config.json", text);
    EXPECT_NE(line().find("config.json: "), std::string::npos) << text << line();
    EXPECT_EQ(line().find('\n'), std::string::npos);
  }
  write("config.json", std::string(100000, '['));
  EXPECT_NE(line().find("nested deeper"), std::string::npos);
  write("config.json", base(kLlama).dump());
  write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_NE(line().find("generation_config.json: eos_token_id"), std::string::npos) << line();
}

}  // namespace
}  // namespace larder
