// larder verify, as a user meets it.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

class Verify : public ::testing::Test {
 protected:
  Verify() : text_(folder_.path() / "text") {
    AtomicFile file(text_);
    const std::string verse =
        "To be, or not to be: that is the question. Whether 'tis nobler in the mind to suffer\n"
        "The slings and arrows of outrageous fortune, or to take arms against a sea of troubles\n";
    for (int i = 0; i < 2; ++i) file.write(verse.data(), verse.size());
    file.commit();
  }

  CommandResult verify(const Arguments& more) const {
    Arguments all = {"verify",    "-m", toy_folder("toy-llama"), "--kv", "--text", text_,
                     "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return run_larder(all);
  }
  static std::vector<Arguments> words(const std::string& text) {
    std::vector<Arguments> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      std::istringstream each(line);
      lines.emplace_back(std::istream_iterator<std::string>(each),
                         std::istream_iterator<std::string>());
    }
    return lines;
  }

  TempFolder folder_;
  const std::string text_;
};

const Arguments kTwoFormats = {
    "--format", "static",
    "--format", R"(quantized:{"backend":"larder","nbits":4,"residual_length":0})",
    "--first",  "70"};

TEST_F(Verify, PrintsALineAFormatUnderItsColumns) {
  const CommandResult result = verify(kTwoFormats);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto lines = words(result.out);
  ASSERT_EQ(lines.size(), 4u) << result.out;
  EXPECT_NE(result.out.find(" tokens, 70 at once, then 8 a step; exact f32 cache: perplexity "),
            std::string::npos)
      << result.out;
  EXPECT_EQ(lines[1], (Arguments{"cache", "mean_kl", "max_kl", "same_top", "perplexity",
                                 "bytes_per_token", "config"}));
  ASSERT_EQ(lines[2].size(), 6u) << "no config";
  EXPECT_EQ(lines[2][0], "static");
  EXPECT_EQ(lines[2][1], "0");
  EXPECT_EQ(lines[2][3], "1.0000");
  ASSERT_EQ(lines[3].size(), 7u);
  EXPECT_EQ(lines[3][0], "quantized");
  EXPECT_GT(std::stod(lines[3][1]), 0);
  EXPECT_EQ(lines[3][6], R"({"backend":"larder","nbits":4,"residual_length":0})");
}

TEST_F(Verify, JsonHasTheSameFigures) {
  Arguments flags = kTwoFormats;
  flags.insert(flags.end(), {"--json", "--chunk", "5"});
  const CommandResult result = verify(flags);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = parse_json(result.out, "the output");
  EXPECT_GT(json.at("tokens"), 70);
  EXPECT_EQ(json.at("first"), 70);
  EXPECT_EQ(json.at("chunk"), 5);
  EXPECT_EQ(json.at("exact").at("cache"), "dynamic");
  ASSERT_EQ(json.at("formats").size(), 2u);
  for (const Json& format : json.at("formats")) {
    for (const char* key : {"mean_kl", "max_kl", "same_top", "perplexity", "bytes_per_token"})
      EXPECT_TRUE(format.at(key).is_number()) << key;
    EXPECT_TRUE(format.at("config").is_object());
    EXPECT_FALSE(format.contains("heads"));
  }
  EXPECT_EQ(json["formats"][0].at("perplexity"), json["exact"].at("perplexity"));
  EXPECT_EQ(json["formats"][1]["config"].at("nbits"), 4);
  EXPECT_LT(json["formats"][1].at("bytes_per_token"), json["formats"][0].at("bytes_per_token"));
}

TEST_F(Verify, PerHeadListsEveryLayerAndHeadUnderItsFormat) {
  Arguments flags = kTwoFormats;
  flags.push_back("--per-head");
  const CommandResult result = verify(flags);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto lines = words(result.out);
  constexpr size_t kHeads = size_t{4} * 2;  // layers and heads of toy-llama
  ASSERT_EQ(lines.size(), 2 + 2 * (2 + kHeads)) << result.out;
  for (const size_t format : {size_t{2}, 2 + 2 + kHeads}) {
    EXPECT_EQ(lines[format + 1],
              (Arguments{"layer", "head", "key_error", "value_error", "output_error"}));
    for (size_t i = 0; i < kHeads; ++i) {
      const Arguments& line = lines[format + 2 + i];
      ASSERT_EQ(line.size(), 5u);
      EXPECT_EQ(line[0], std::to_string(i / 2));
      EXPECT_EQ(line[1], std::to_string(i % 2));
      for (const size_t error : {size_t{2}, size_t{3}, size_t{4}}) {
        EXPECT_LT(std::stod(line[error]), 0.3) << result.out;
        EXPECT_EQ(std::stod(line[error]) > 0, lines[format][0] == "quantized") << result.out;
      }
    }
  }
  flags.push_back("--json");
  const Json json = parse_json(verify(flags).out, "the output");
  const Json& heads = json.at("formats").at(1).at("heads");
  ASSERT_EQ(heads.size(), kHeads);
  for (const char* key : {"layer", "head", "key_error", "value_error", "output_error"})
    EXPECT_TRUE(heads[7].contains(key)) << key;
}

TEST_F(Verify, WithoutAListItComparesQuantizedFormats) {
  const CommandResult result = verify({"--tokens", "20", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = parse_json(result.out, "the output");
  EXPECT_EQ(json.at("tokens"), 20);
  EXPECT_GT(json.at("formats").size(), 5u);
  for (const Json& format : json.at("formats")) EXPECT_EQ(format.at("cache"), "quantized");
}

TEST_F(Verify, WeightFormatsAreComparedWithTheStoredOnes) {
  const Arguments flags = {
      "verify", "-m", toy_folder("toy-llama"), "--text", text_, "--threads", "1", "--weights"};
  const CommandResult result = run_larder(flags);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto lines = words(result.out);
  ASSERT_EQ(lines.size(), 4u) << result.out;
  EXPECT_NE(result.out.find(" tokens, computed in bf16; stored weights: perplexity "),
            std::string::npos);
  EXPECT_EQ(lines[1], (Arguments{"format", "bits_per_weight", "mean_kl", "max_kl", "same_top",
                                 "perplexity"}));
  EXPECT_EQ(lines[2][0], "int8");
  EXPECT_EQ(lines[3][0], "int4");
  for (const size_t i : {size_t{2}, size_t{3}}) ASSERT_EQ(lines[i].size(), 6u);
  // A toy of 4 layers, never quantized: far below what rounding to int8 or int4 may cost.
  EXPECT_LT(std::stod(lines[2][2]), 0.002);
  EXPECT_LT(std::stod(lines[3][2]), 0.06);
  EXPECT_GT(std::stod(lines[3][2]), std::stod(lines[2][2]));
  EXPECT_LT(std::stod(lines[3][1]), std::stod(lines[2][1]));
}

TEST_F(Verify, OneWeightFormatAndJson) {
  const CommandResult result =
      run_larder({"verify", "-m", toy_folder("toy-llama"), "--text", text_, "--threads", "1",
                  "--weights", "int8", "--json", "--dtype", "f32"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = parse_json(result.out, "the output");
  EXPECT_EQ(json.at("dtype"), "f32");
  EXPECT_EQ(json.at("exact").at("format"), "stored");
  ASSERT_EQ(json.at("formats").size(), 1u);
  EXPECT_EQ(json.at("formats")[0].at("format"), "int8");
  for (const char* key : {"bits_per_weight", "mean_kl", "max_kl", "same_top", "perplexity"})
    EXPECT_TRUE(json.at("formats")[0].at(key).is_number()) << key;
}

TEST_F(Verify, FlagsThatMakeNoSenseAreRefusedInOneLine) {
  for (const Arguments& flags : {Arguments{"--format", "absent"},
                                 {"--format", "quantized:{"},
                                 {"--tokens", "-1"},
                                 {"--tokens", "1"},
                                 {"--first", "0"},
                                 {"--chunk", "x"},
                                 {"--format", R"(quantized:{"backend":"none"})"}}) {
    const CommandResult result = verify(flags);
    EXPECT_EQ(result.code, 2) << flags[0] << " " << flags[1];
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
  const CommandResult without =
      run_larder({"verify", "-m", toy_folder("toy-llama"), "--text", text_});
  EXPECT_EQ(without.code, 2);
  EXPECT_NE(without.err.find("give --kv"), std::string::npos) << without.err;
}

}  // namespace
}  // namespace larder::test
