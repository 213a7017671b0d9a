#include "larder/text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"

namespace larder {
namespace {

using Texts = std::vector<std::string>;

Texts cut(const Json& spec, std::string_view text) {
  const auto pre_tokenizer = make_pre_tokenizer(&spec, "test");
  Texts texts;
  for (const Piece& piece : pre_tokenize(*pre_tokenizer, {{std::string(text), true}}))
    texts.push_back(piece.text);
  return texts;
}

Json split(std::string_view behavior, bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"String", "-"}}},
          {"behavior", behavior},
          {"invert", invert}};
}

TEST(PreTokenizer, SplitHasFiveBehaviours) {
  constexpr std::string_view kText = "the-final--countdown";
  EXPECT_EQ(cut(split("Removed"), kText), (Texts{"the", "final", "countdown"}));
  EXPECT_EQ(cut(split("Isolated"), kText), (Texts{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(cut(split("MergedWithPrevious"), kText), (Texts{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(cut(split("MergedWithNext"), kText), (Texts{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(cut(split("Contiguous"), kText), (Texts{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(cut(split("Removed", true), kText), (Texts{"-", "-", "-"}));
}

TEST(PreTokenizer, ByteLevelCutsWordsAndWritesBytesAsCharacters) {
  Json spec = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  EXPECT_EQ(cut(spec, "I'm 日  x"), (Texts{"ĠI", "'m", "ĠæĹ¥", "Ġ", "Ġx"}));
  spec["use_regex"] = false;
  EXPECT_EQ(cut(spec, "a b"), (Texts{"ĠaĠb"}));
}

TEST(PreTokenizer, DigitsOneByOneOrTogether) {
  EXPECT_EQ(cut({{"type", "Digits"}, {"individual_digits", true}}, "a12"), (Texts{"a", "1", "2"}));
  EXPECT_EQ(cut({{"type", "Digits"}, {"individual_digits", false}}, "a12b"),
            (Texts{"a", "12", "b"}));
}

TEST(PreTokenizer, MetaspaceSplitsBeforeEachMark) {
  const Json spec = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}, {"split", true}};
  EXPECT_EQ(cut(spec, "a b  c"), (Texts{"▁a", "▁b", "▁", "▁c"}));
}

TEST(PreTokenizer, WhiteSpaceKinds) {
  EXPECT_EQ(cut({{"type", "Whitespace"}}, "it's a\u3000_b!!"),
            (Texts{"it", "'", "s", "a", "_b", "!!"}));
  EXPECT_EQ(cut({{"type", "WhitespaceSplit"}}, " it's  a"), (Texts{"it's", "a"}));
  EXPECT_EQ(cut({{"type", "Punctuation"}}, "a.b«"), (Texts{"a", ".", "b", "«"}));
}

TEST(PreTokenizer, SequenceRunsInOrder) {
  const Json spec = {{"type", "Sequence"},
                     {"pretokenizers",
                      {{{"type", "Digits"}, {"individual_digits", true}},
                       {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
  EXPECT_EQ(cut(spec, "x 12"), (Texts{"x", "Ġ", "1", "2"}));
}

TEST(PreTokenizer, UnknownTypeIsRefusedWithTheListOfKnownOnes) {
  const Json spec = {{"type", "BertPreTokenizer"}};
  try {
    make_pre_tokenizer(&spec, "test");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string_view(e.what()).find("BertPreTokenizer"), std::string_view::npos);
    EXPECT_NE(std::string_view(e.what()).find("Metaspace"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace larder
