#include "larder/base/str.h"

#include <gtest/gtest.h>

#include <clocale>
#include <limits>
#include <locale>
#include <vector>

namespace larder {
namespace {

// Puts a comma for the point and dots between thousands while it lives, in streams and, where the
// machine has such a locale, in the C library.
class CommaLocale {
 public:
  CommaLocale() : old_(std::locale::global(std::locale(std::locale::classic(), new Comma))) {
    for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"}) {
      if (std::setlocale(LC_ALL, name)) break;
    }
  }
  ~CommaLocale() {
    std::setlocale(LC_ALL, "C");
    std::locale::global(old_);
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

 private:
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  std::locale old_;
};

TEST(Str, JoinsStringsNumbersAndBooleans) {
  EXPECT_EQ(str("head_dim ", 80, " is odd"), "head_dim 80 is odd");
  EXPECT_EQ(str('a', true, false, std::string("b"), std::string_view("c")), "atruefalsebc");
  EXPECT_EQ(str(), "");
}

TEST(Str, WritesTheExtremesOfIntegers) {
  EXPECT_EQ(str(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(str(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
}

TEST(Str, WritesTheShortestTextThatReadsBackTheSame) {
  EXPECT_EQ(str(0.1), "0.1");
  EXPECT_EQ(str(0.1f), "0.1");
  EXPECT_EQ(str(1e-5), "1e-05");
  EXPECT_EQ(str(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Case37, NumbersKeepThePointInAnyLocale) {
  const CommaLocale comma;
  EXPECT_EQ(str(1234567.5), "1234567.5");
  EXPECT_EQ(fixed(1234.5, 2), "1234.50");
  EXPECT_EQ(human_bytes(1234567), "1.23 MB");
}

TEST(Join, PutsTheSeparatorBetweenOnly) {
  EXPECT_EQ(join(std::vector<std::string>{"a", "b"}, ", "), "a, b");
  EXPECT_EQ(join(std::vector<int>{1}, ", "), "1");
  EXPECT_EQ(join(std::vector<int>{}, ", "), "");
}

TEST(Fixed, RoundsAndKeepsTheDecimals) {
  EXPECT_EQ(fixed(2.675, 1), "2.7");
  EXPECT_EQ(fixed(-0.04, 1), "-0.0");
  EXPECT_EQ(fixed(3, 0), "3");
  EXPECT_EQ(fixed(1e300, 1).size(), 303u);
}

TEST(HumanBytes, ChangesUnitAtAThousand) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(54.3e6), "54.3 MB");
  EXPECT_EQ(human_bytes(1.5e15), "1500.0 TB");
}

TEST(InQuotes, ShowsControlBytesAsQuestionMarks) {
  EXPECT_EQ(in_quotes("a\nb\tc\x7f"), "\"a?b?c?\"");
  EXPECT_EQ(in_quotes(std::string_view("\0x", 2)), "\"?x\"");
}

TEST(InQuotes, CutsBetweenCharactersOnly) {
  const std::string_view euro = "\xE2\x82\xAC";  // 3 bytes
  const std::string text = str("ab", euro, euro);
  EXPECT_EQ(in_quotes(text, 8), str("\"", text, "\""));
  EXPECT_EQ(in_quotes(text, 7), str("\"ab", euro, "...\""));
  EXPECT_EQ(in_quotes(text, 6), str("\"ab", euro, "...\""));
  EXPECT_EQ(in_quotes(text, 5), str("\"ab", euro, "...\""))
      << "a whole character before the cut stays";
  EXPECT_EQ(in_quotes(text, 4), "\"ab...\"");
  EXPECT_EQ(in_quotes(text, 2), "\"ab...\"");
  EXPECT_EQ(in_quotes(text, 0), "\"...\"");
}

}  // namespace
}  // namespace larder
