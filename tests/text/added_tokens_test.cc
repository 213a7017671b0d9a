#include "larder/text/added_tokens.h"

#include <gtest/gtest.h>

#include "tests/text/test_tokenizers.h"

namespace larder {
namespace {

using Ids = std::vector<int32_t>;

Json with_flags(std::initializer_list<const char*> flags) {
  Json json = case39_json();
  for (const char* flag : flags) json["added_tokens"][0][flag] = true;
  return json;
}

Ids encode(const Json& json, std::string_view text) {
  return tokenizer_of(json).encode(text, false);
}

TEST(Case39, AddedTokenTakesTheSpacesThatItsFlagsSay) {
  EXPECT_EQ(encode(with_flags({}), "ab <m> ab"), (Ids{265, 259, 268, 259, 265}));
  EXPECT_EQ(encode(with_flags({"lstrip"}), "ab <m> ab"), (Ids{265, 268, 259, 265}));
  EXPECT_EQ(encode(with_flags({"rstrip"}), "ab <m> ab"), (Ids{265, 259, 268, 265}));
  EXPECT_EQ(encode(with_flags({"lstrip", "rstrip"}), "ab <m> ab"), (Ids{265, 268, 265}));
}

TEST(Case39, PrefixGoesOnEachPieceBetweenAddedTokens) {
  EXPECT_EQ(encode(with_flags({}), "ab<m>ab"), (Ids{265, 268, 265}));
}

TEST(Case39, SingleWordIsNotMatchedInsideAWord) {
  const Json json = with_flags({"single_word"});
  EXPECT_EQ(encode(json, "ab<m>ab"), (Ids{265, 63, 112, 65, 263}));
  EXPECT_EQ(encode(json, "ab <m> ab"), (Ids{265, 259, 268, 259, 265}));
  EXPECT_EQ(encode(json, "é<m>"), (Ids{259, 267, 63, 112, 65})) << "letters past ASCII too";
}

TEST(Case39, LeftmostLongestAddedTokenWins) {
  Json json = case39_json();
  json["added_tokens"].push_back(added_token("<m><m>", 269));
  EXPECT_EQ(encode(json, "<m><m><m>"), (Ids{269, 268}));
}

TEST(Case39, PlainTexts) {
  const Json json = case39_json();
  EXPECT_EQ(encode(json, "abc"), (Ids{265, 262}));
  EXPECT_EQ(encode(json, "é"), (Ids{259, 267}));
  EXPECT_EQ(encode(json, " "), (Ids{259, 259}));
  EXPECT_EQ(encode(json, ""), Ids{});
}

TEST(Case39, MetaspacePrependsByItsScheme) {
  const auto tokens = [](std::string_view scheme, std::string_view text) {
    Json json = case39_json();
    json["normalizer"] = nullptr;
    json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", false}};
    const Tokenizer tokenizer = tokenizer_of(json);
    return tokenizer.tokens(tokenizer.encode(text, false));
  };
  using Tokens = std::vector<std::string>;
  EXPECT_EQ(tokens("first", "ab<m>ab"), (Tokens{"▁ab", "<m>", "ab"}));
  EXPECT_EQ(tokens("first", "<m>ab"), (Tokens{"<m>", "ab"}));
  EXPECT_EQ(tokens("always", "ab<m>ab"), (Tokens{"▁ab", "<m>", "▁ab"}));
  EXPECT_EQ(tokens("always", "<m>ab"), (Tokens{"<m>", "▁ab"}));
  EXPECT_EQ(tokens("never", "ab<m>ab"), (Tokens{"ab", "<m>", "ab"}));
}

TEST(AddedTokens, NormalizedTokenIsMatchedInTheNormalizedText) {
  Json json = case39_json();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"].push_back(added_token("Xy", 269, false));
  json["added_tokens"][1]["normalized"] = true;
  EXPECT_EQ(encode(json, "aXY"), (Ids{260, 269}));
  json["added_tokens"][1]["normalized"] = false;
  EXPECT_EQ(encode(json, "aXy"), (Ids{260, 269}));
  EXPECT_NE(encode(json, "aXY"), (Ids{260, 269}));
}

TEST(AddedTokens, OnlySpecialOnesAreSkipped) {
  Json json = case39_json();
  json["added_tokens"].push_back(added_token("<tool>", 269, false));
  const Tokenizer tokenizer = tokenizer_of(json);
  EXPECT_TRUE(tokenizer.is_special(268));
  EXPECT_FALSE(tokenizer.is_special(269));
  EXPECT_FALSE(tokenizer.is_special(1)) << "<s> of the vocabulary is not marked";
  EXPECT_EQ(tokenizer.decode(Ids{268, 269, 260}, true), "<tool>a");
  EXPECT_EQ(tokenizer.decode(Ids{268, 269, 260}, false), "<m><tool>a");
}

}  // namespace
}  // namespace larder
