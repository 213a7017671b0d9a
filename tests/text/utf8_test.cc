#include "larder/text/utf8.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(Utf8, EveryCodePointReadsBackAsWritten) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code == 0xD800) code = 0xE000;  // surrogates are no characters
    std::string text;
    append_char(text, code);
    const CharScan scan = scan_char(text);
    ASSERT_EQ(scan.kind, CharScan::kWhole);
    ASSERT_EQ(scan.length, text.size());
    ASSERT_EQ(scan.code, code);
    for (size_t cut = 1; cut < text.size(); ++cut)
      ASSERT_EQ(scan_char(text.substr(0, cut)).kind, CharScan::kShort);
  }
}

TEST(Utf8, BrokenSequencesAreCutWhereTheyBreak) {
  const auto broken = [](std::string_view text) {
    const CharScan scan = scan_char(text);
    EXPECT_EQ(scan.kind, CharScan::kBroken);
    return scan.length;
  };
  EXPECT_EQ(broken("\x80"), 1u);
  EXPECT_EQ(broken("\xC0\x80"), 1u) << "overlong";
  EXPECT_EQ(broken("\xE0\x80\x80"), 1u) << "overlong";
  EXPECT_EQ(broken("\xED\xA0\x80"), 1u) << "surrogate";
  EXPECT_EQ(broken("\xF0\x9F"
                   "A"),
            2u);
  EXPECT_EQ(broken("\xF4\x90\x80\x80"), 1u) << "past U+10FFFF";
  EXPECT_EQ(broken("\xF5"), 1u);
}

TEST(Utf8, FirstInvalidByteIsNamed) {
  EXPECT_EQ(first_invalid_utf8("aé😀"), std::string_view::npos);
  EXPECT_EQ(first_invalid_utf8("aé\xFFz"), 3u);
  EXPECT_EQ(first_invalid_utf8("ab\xC3"), 2u);
}

}  // namespace
}  // namespace larder
