#include "larder/text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <locale>
#include <thread>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/text/stream_decoder.h"
#include "tests/support/source_dir.h"
#include "tests/text/test_tokenizers.h"

namespace larder {
namespace {

using Ids = std::vector<int32_t>;
const std::filesystem::path kSource = test::source_path("");

TEST(Tokenizer, ToyModelsAgreeWithTheirReference) {
  const auto folder = kSource / "models/toy";
  const Json cases = parse_json(read_file(folder / "reference.json"), "reference.json");
  ASSERT_EQ(cases.size(), 12u);
  for (const Json& item : cases) {
    const auto name = item.at("model").get<std::string>();
    const Tokenizer tokenizer = Tokenizer::load(folder / name);
    const auto prompt = item.at("prompt_ids").get<Ids>();
    EXPECT_EQ(tokenizer.encode(item.at("prompt").get<std::string>(), true), prompt) << name;
    StreamDecoder stream(tokenizer, {.skip_special_tokens = true, .context = prompt});
    std::string text;
    for (const int32_t id : item.at("greedy").at("output_ids").get<Ids>()) text += stream.push(id);
    text += stream.finish();
    EXPECT_EQ(text, item.at("greedy").at("output_text").get<std::string>()) << name;
  }
}

TEST(Tokenizer, MergesMayBePairsOrStrings) {
  Json json = case39_json();
  Json pairs = Json::array();
  for (const Json& merge : json["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    pairs.push_back(Json::array({text.substr(0, space), text.substr(space + 1)}));
  }
  const Ids expected = tokenizer_of(json).encode("abc ab", false);
  json["model"]["merges"] = pairs;
  EXPECT_EQ(tokenizer_of(json).encode("abc ab", false), expected);
}

TEST(Tokenizer, IgnoreMergesTakesAWholeWordOfTheVocabulary) {
  Json json = case39_json();
  json["normalizer"] = nullptr;
  json["model"]["vocab"]["cab"] = 300;
  EXPECT_EQ(tokenizer_of(json).encode("cab", false), (Ids{262, 263}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(json).encode("cab", false), (Ids{300}));
}

TEST(Tokenizer, UnknownCharactersAreFusedOrNot) {
  Json json = case39_json();
  json["model"]["byte_fallback"] = false;
  json["normalizer"] = nullptr;
  EXPECT_EQ(tokenizer_of(json).encode("xya", false), (Ids{0, 260}));
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(tokenizer_of(json).encode("xya", false), (Ids{0, 0, 260}));
  json["model"]["unk_token"] = nullptr;
  EXPECT_EQ(tokenizer_of(json).encode("xya", false), (Ids{260}));
}

TEST(Tokenizer, ContinuingPrefixAndEndOfWordSuffix) {
  const auto encode = [](const Json& model, std::string_view text) {
    const Tokenizer tokenizer = tokenizer_of({{"model", model}});
    return tokenizer.encode(text, false);
  };
  Json model = {{"vocab", {{"a", 0}, {"##b", 1}, {"ab", 2}, {"##c", 3}}},
                {"merges", Json::array({"a ##b"})},
                {"continuing_subword_prefix", "##"}};
  EXPECT_EQ(encode(model, "abc"), (Ids{2, 3}));
  model = {{"vocab", {{"a", 0}, {"b</w>", 1}, {"ab</w>", 2}}},
           {"merges", Json::array({"a b</w>"})},
           {"end_of_word_suffix", "</w>"}};
  EXPECT_EQ(encode(model, "ab"), (Ids{2}));
}

TEST(Tokenizer, PostProcessorsPutSpecialTokensAround) {
  Json json = case39_json();
  const auto cls = [](const char* token, int id) { return Json::array({token, id}); };
  json["post_processor"] = {
      {"type", "RobertaProcessing"}, {"cls", cls("<s>", 1)}, {"sep", cls("</s>", 2)}};
  EXPECT_EQ(tokenizer_of(json).encode("ab", true), (Ids{1, 265, 2}));
  EXPECT_EQ(tokenizer_of(json).encode("ab", false), (Ids{265}));
  EXPECT_EQ(tokenizer_of(json).encode("", true), (Ids{1, 2}));
}

TEST(Tokenizer, TextThatIsNoUtf8IsRefused) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  EXPECT_THROW(tokenizer.encode("ab\xFF", false), Error);
  EXPECT_THROW(tokenizer.encode("ab\xC3", false), Error);
}

TEST(Tokenizer, AWordOfAMegabyteTakesNoQuadraticTime) {
  const Tokenizer tokenizer = tokenizer_of(case39_json());
  std::string text;
  for (int i = 0; i < 500'000; ++i) text += "ab";
  const auto begin = std::chrono::steady_clock::now();
  const Ids ids = tokenizer.encode(text, false);
  EXPECT_EQ(ids.size(), 500'000u);
  EXPECT_EQ(tokenizer.decode(ids, false), text);
  // Quadratic would be hours.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(Tokenizer, EightThreadsShareOne) {
  const Tokenizer tokenizer = Tokenizer::load(kSource / "models/toy/toy-llama");
  const std::string text = "HAMLET.\nTo be, or not to be, that is the question: naïve 😀";
  const Ids expected = tokenizer.encode(text, true);
  std::vector<std::thread> threads;
  std::vector<int> wrong(8, 0);
  for (size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        if (tokenizer.encode(text, true) != expected) ++wrong[i];
        if (tokenizer.decode(expected, true) != text) ++wrong[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

// A decimal comma and thousands grouping, without needing the locale to be installed.
class CommaNumbers : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Case37, LocaleChangesNothing) {
  Json json = case39_json();
  json["added_tokens"].push_back(added_token("<far>", 1'234'567));
  const std::locale before = std::locale::global(std::locale(std::locale(), new CommaNumbers));
  const Tokenizer tokenizer = tokenizer_of(json);
  const Ids ids = tokenizer.encode("ab 1.5é<far>", false);
  const std::string text = tokenizer.decode(ids, false);
  std::string message;
  json["added_tokens"][1]["id"] = 4'000'000'000;
  try {
    tokenizer_of(json);
  } catch (const Error& e) {
    message = e.what();
  }
  std::locale::global(before);
  EXPECT_EQ(ids, (Ids{265, 259, 52, 49, 56, 267, 1'234'567}));
  EXPECT_EQ(text, "ab 1.5é<far>");
  EXPECT_NE(message.find("4000000000"), std::string::npos) << message;
}

}  // namespace
}  // namespace larder
