#include "larder/text/normalizer.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

std::string normalize(const Json& spec, std::string text) {
  return make_normalizer(&spec, "test")->apply(std::move(text));
}
std::string normalize(const char* type, std::string text) {
  return normalize(Json{{"type", type}}, std::move(text));
}

TEST(Normalizer, NormalForms) {
  EXPECT_EQ(normalize("NFC", "e\u0301 \u1100\u1161"), "\u00e9 \uac00");
  EXPECT_EQ(normalize("NFD", "\u00e9\uac00"), "e\u0301\u1100\u1161");
  EXPECT_EQ(normalize("NFKC", "\ufb01\u00b2\u212b"), "fi2\u00c5");
  EXPECT_EQ(normalize("NFKD", "\ufb01\u00e9"), "fie\u0301");
  EXPECT_EQ(normalize("NFC", std::string("a\0\u00e9", 4)), std::string("a\0\u00e9", 4));
}

TEST(Normalizer, MarksAreOrderedEvenAMillionOfThem) {
  // U+0301 above (230), U+0327 below (202): the worst order, in one run.
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0301\u0327";
  const std::string ordered = normalize("NFD", text);
  EXPECT_EQ(ordered.size(), text.size());
  EXPECT_EQ(ordered.substr(1, 4), "\u0327\u0327");
  EXPECT_TRUE(ordered.ends_with("\u0301\u0301"));
}

TEST(Normalizer, LettersAndAccents) {
  EXPECT_EQ(normalize("Lowercase", "ÀΣ\u0130ß"), "àσi\u0307ß");
  EXPECT_EQ(normalize("StripAccents", "e\u0301\u093f"), "e");
}

TEST(Normalizer, StripPrependReplace) {
  const Json left = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
  EXPECT_EQ(normalize(left, "\u3000 a "), "a ");
  EXPECT_EQ(normalize(Json{{"type", "Strip"}}, " \t "), "");
  const Json prepend = {{"type", "Prepend"}, {"prepend", "▁"}};
  EXPECT_EQ(normalize(prepend, "a"), "▁a");
  EXPECT_EQ(normalize(prepend, ""), "");
  const Json replace = {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "\\1"}};
  EXPECT_EQ(normalize(replace, "a   b c"), "a\\1b c") << "the content is no template";
}

TEST(Normalizer, NullIsNone) {
  const Json null;
  EXPECT_EQ(make_normalizer(&null, "test"), nullptr);
  EXPECT_EQ(make_normalizer(nullptr, "test"), nullptr);
}

}  // namespace
}  // namespace larder
