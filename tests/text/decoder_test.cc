#include "larder/text/decoder.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

std::string decode(const Json& spec, const std::vector<std::string>& tokens) {
  const Decoder decoder(&spec, "test");
  Decoder::Run run = decoder.start();
  std::string text;
  for (const std::string& token : tokens) run.take(token, text);
  run.finish(text);
  return text;
}

Json sequence(std::initializer_list<Json> steps) {
  Json list = Json::array();
  for (const Json& step : steps) list.push_back(step);
  return {{"type", "Sequence"}, {"decoders", list}};
}

const Json kFuse = {{"type", "Fuse"}};

TEST(Decoder, WithoutOneTokensAreJoinedBySpaces) {
  EXPECT_EQ(decode(Json(), {"a", "b", "c"}), "a b c");
}

TEST(Decoder, ByteLevelTakesATokenOutsideItsAlphabetAsItIs) {
  EXPECT_EQ(decode({{"type", "ByteLevel"}}, {"ĠæĹ", "¥", "日Ġ"}), " 日日Ġ");
}

TEST(Decoder, MetaspaceDropsMarksOfTheFirstTokenOnly) {
  Json spec = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}};
  EXPECT_EQ(decode(spec, {"▁a▁b", "▁c"}), "ab c");
  spec["prepend_scheme"] = "never";
  EXPECT_EQ(decode(spec, {"▁a", "▁c"}), " a c");
}

TEST(Decoder, StripCutsEachTokenOrTheWholeText) {
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 1}};
  EXPECT_EQ(decode(strip, {"  a ", " b"}), " ab");
  EXPECT_EQ(decode(sequence({kFuse, strip}), {"  a ", " b", " ", " "}), " a  b ");
  EXPECT_EQ(decode(sequence({kFuse, strip}), {" ", " "}), "");
}

TEST(Decoder, ReplaceAfterFuseSeesTheWholeText) {
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "x"}};
  EXPECT_EQ(decode(sequence({replace, kFuse}), {"a", "b", "ab"}), "abx");
  EXPECT_EQ(decode(sequence({kFuse, replace}), {"a", "b", "ab"}), "xx");
}

TEST(Decoder, ByteFallbackTakesOnlyTokensOfItsForm) {
  EXPECT_EQ(decode({{"type", "ByteFallback"}}, {"<0xe6>", "<0x97>", "<0xA5>", "<0xZZ>", "<0x4>"}),
            "日<0xZZ><0x4>");
}

}  // namespace
}  // namespace larder
