#include "larder/text/regex.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"

namespace larder {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  std::vector<std::string> found;
  for (const Span& span : Regex(pattern, "test").find_all(text))
    found.emplace_back(text.substr(span.begin, span.end - span.begin));
  return found;
}
using Texts = std::vector<std::string>;

TEST(Regex, UnicodeClassesAndLookAheadWork) {
  EXPECT_EQ(matches(R"(\p{L}+)", "aé日 1"), (Texts{"aé日"}));
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a   b "), (Texts{"  ", " ", " "}));
}

TEST(Regex, SpaceIsUnicodesWhiteSpace) {
  EXPECT_EQ(matches(R"(\s)", "a\xC2\xA0\xC2\x85\xE2\x80\xA8").size(), 3u);
  EXPECT_EQ(matches(R"(\s)", "\xE1\xA0\x8E").size(), 0u) << "U+180E has not been one since 6.3";
  EXPECT_EQ(matches(R"([^\s])", "\xE1\xA0\x8E").size(), 1u);
}

TEST(Regex, WordCharactersHoldMarksAndConnectors) {
  EXPECT_EQ(matches(R"(\w+)", "e\xCC\x81_\xE2\x80\xBF! x").size(), 2u);
  EXPECT_EQ(matches(R"(\b)", "e\xCC\x81 x").size(), 4u);
}

TEST(Regex, RubysIntervalPlusRepeatsTheInterval) {
  EXPECT_EQ(Regex::to_pcre2(R"(\p{N}{1,3}+|(?:ab){2}+)", "test"),
            R"((?:\p{N}{1,3})+|(?:(?:ab){2})+)");
  EXPECT_EQ(matches(R"(\p{N}{1,3}+)", "1234567"), (Texts{"1234567"}));
  EXPECT_EQ(matches(R"(\p{N}{1,3})", "1234567"), (Texts{"123", "456", "7"}));
}

TEST(Regex, RubysOptionsAndAnchors) {
  EXPECT_EQ(matches("(?m:a.b)", "a\nb").size(), 1u);
  EXPECT_EQ(matches("a.b", "a\nb").size(), 0u);
  EXPECT_EQ(matches("^b", "a\nb").size(), 1u);
  EXPECT_EQ(matches("(?i:'S)", "'s").size(), 1u);
}

TEST(Regex, EmptyMatchesStandBetweenCharactersOnly) {
  EXPECT_EQ(Regex("x*", "test").find_all("axé"), (std::vector<Span>{{0, 0}, {1, 2}, {4, 4}}));
}

TEST(Regex, WhatDoesNotCompileIsRefusedByName) {
  EXPECT_THROW(Regex("(a", "test"), Error);
  EXPECT_THROW(Regex("[a[b]]", "test"), Error);
  EXPECT_THROW(Regex(R"(\p{NoSuch})", "test"), Error);
}

TEST(Regex, ARunawayExpressionIsAnErrorNotAHang) {
  EXPECT_THROW(Regex("(?:a|a)+[0-9]", "test").find_all(std::string(60, 'a')), Error);
}

TEST(Regex, AMillionSpacesAreOneMatch) {
  EXPECT_EQ(
      Regex(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", "test").find_all(std::string(1'000'000, ' ')).size(),
      1u);
}

}  // namespace
}  // namespace larder
