#include "larder/generate/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/philox.h"
#include "tests/support/allocation_counter.h"

namespace larder {
namespace {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  bool stopped = false;
  std::optional<size_t> by;
};

Outcome run(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher(stops);
  Outcome out;
  for (const auto& piece : pieces) out.text += matcher.feed(piece).text;
  const auto end = matcher.finish();
  out.text += end.text;
  out.stopped = end.stopped;
  out.by = matcher.stopped_by();
  return out;
}

Strings bytes_of(const std::string& text) {
  Strings out;
  for (const char byte : text) out.emplace_back(1, byte);
  return out;
}

TEST(Case43, AStopThatSpansPiecesIsNeverShown) {
  StopMatcher matcher({"own fox"});
  EXPECT_EQ(matcher.feed("The quick br").text, "The quick br");
  auto shown = matcher.feed("own");
  EXPECT_EQ(shown.text, "");
  EXPECT_FALSE(shown.stopped);
  shown = matcher.feed(" fox jumps");
  EXPECT_EQ(shown.text, "");
  EXPECT_TRUE(shown.stopped);
  EXPECT_EQ(matcher.feed(" over").text, "");
  EXPECT_TRUE(matcher.finish().stopped);
  EXPECT_EQ(matcher.stopped_by(), 0u);
  EXPECT_EQ(run({"own fox"}, {"The quick brown fox jumps"}).text, "The quick br");
}

TEST(Case43, TheEarliestMatchWinsAndTheEarlierListedOnATie) {
  for (const Strings& pieces : {Strings{"xxabcyy"}, bytes_of("xxabcyy"), Strings{"xxa", "bcyy"}}) {
    const auto short_first = run({"ab", "abc"}, pieces);
    EXPECT_EQ(short_first.text, "xx");
    EXPECT_EQ(short_first.by, 0u);
    const auto long_first = run({"abc", "ab"}, pieces);
    EXPECT_EQ(long_first.text, "xx");
    EXPECT_EQ(long_first.by, 0u);
    const auto later_listed = run({"yy", "bc"}, pieces);
    EXPECT_EQ(later_listed.text, "xxa");
    EXPECT_EQ(later_listed.by, 1u);
    // One that begins earlier wins though another is complete before it.
    EXPECT_EQ(run({"b", "abcy"}, pieces).text, "xx");
    // ... unless it comes to nothing.
    EXPECT_EQ(run({"b", "abcz"}, pieces).text, "xxa");
  }
}

TEST(Case43, AStopIsReportedWithTheByteThatDecidesIt) {
  StopMatcher matcher({"ab", "abc"});
  EXPECT_FALSE(matcher.feed("xa").stopped);
  EXPECT_TRUE(matcher.feed("b").stopped);
}

TEST(Case43, AnUndecidedMatchAtTheEndIsAStop) {
  const auto out = run({"b", "abcz"}, {"xab"});
  EXPECT_EQ(out.text, "xa");
  EXPECT_TRUE(out.stopped);
  EXPECT_EQ(out.by, 0u);
}

TEST(Case43, AStopOfOneCharacterHoldsNothingBack) {
  StopMatcher matcher({"."});
  EXPECT_EQ(matcher.feed("One").text, "One");
  EXPECT_EQ(matcher.held(), 0u);
  const auto shown = matcher.feed(" two. Three");
  EXPECT_EQ(shown.text, " two");
  EXPECT_TRUE(shown.stopped);
}

TEST(Case43, AStopInsideOneLongerPieceCutsIt) {
  const auto out = run({"END"}, {"beginENDrest"});
  EXPECT_EQ(out.text, "begin");
  EXPECT_TRUE(out.stopped);
}

TEST(Case43, HeldTextIsReleasedWholeAtANormalEnd) {
  StopMatcher matcher({"own fox"});
  EXPECT_EQ(matcher.feed("br").text, "br");
  EXPECT_EQ(matcher.feed("own").text, "");
  EXPECT_EQ(matcher.held(), 3u);
  const auto end = matcher.finish();
  EXPECT_EQ(end.text, "own");
  EXPECT_FALSE(end.stopped);
  EXPECT_EQ(matcher.finish().text, "");
  EXPECT_FALSE(matcher.stopped_by().has_value());
}

TEST(Case43, MatchingStartsAtTheFirstFedCharacter) {
  // The prompt ended in "own"; it is not fed, so " fox" completes nothing.
  EXPECT_EQ(run({"own fox"}, {" fox", " jumps"}).text, " fox jumps");
  EXPECT_EQ(run({"own fox"}, {"own fox"}).text, "");
}

TEST(Case43, TwoByteCharactersAcrossPiecesStayWhole) {
  StopMatcher matcher({"éà"});
  EXPECT_EQ(matcher.feed("caf").text, "caf");
  EXPECT_EQ(matcher.feed("é").text, "");
  EXPECT_EQ(matcher.feed("è").text, "éè");  // shares its first byte with à
  EXPECT_EQ(matcher.feed("é").text, "");
  EXPECT_TRUE(matcher.feed("à!").stopped);
}

TEST(Case43, OnlyASuffixThatCanStillBecomeAStopIsHeld) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.feed("aaaa").text, "aa");
  EXPECT_EQ(matcher.feed("a").text, "a");
  EXPECT_EQ(matcher.held(), 2u);
  EXPECT_EQ(matcher.feed("c").text, "aac");
  EXPECT_EQ(matcher.held(), 0u);
}

TEST(Case45, StopStringsThatMakeNoSenseAreRefusedByName) {
  try {
    StopMatcher({"ok", ""});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "stop string 2 is empty and would stop everything; remove it");
  }
  EXPECT_THROW(StopMatcher({"\xA9"
                            "abc"}),
               Error);
}

TEST(StopMatcher, WithoutStopStringsEverythingPasses) {
  const auto out = run({}, {"a", "", "bc"});
  EXPECT_EQ(out.text, "abc");
  EXPECT_FALSE(out.stopped);
}

// What the class promises, by searching the whole text.
Outcome by_search(const Strings& stops, const std::string& text) {
  Outcome out;
  size_t begin = std::string::npos;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t at = text.find(stops[i]);
    if (at >= begin) continue;
    begin = at;
    out.by = i;
  }
  out.stopped = out.by.has_value();
  out.text = text.substr(0, begin);
  return out;
}

// The longest suffix of `text` that begins a stop string.
size_t must_hold(const Strings& stops, const std::string& text) {
  size_t most = 0;
  for (const auto& stop : stops)
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n)
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) most = std::max(most, n);
  return most;
}

// Draws in [0, bound), one after another.
struct Draws {
  uint64_t seed, index = 0;
  size_t below(size_t bound) {
    return static_cast<size_t>(uniform_at(seed, index++) * static_cast<double>(bound));
  }
  std::string text(size_t length) {
    std::string out;
    while (out.size() < length) out.push_back("abc"[below(3)]);
    return out;
  }
};

TEST(StopMatcher, EveryCutOfTheTextGivesWhatASearchOfTheWholeGives) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Draws draws{seed};
    Strings stops;
    for (size_t n = draws.below(4) + 1; n > 0; --n) stops.push_back(draws.text(draws.below(6) + 1));
    const std::string text = draws.text(draws.below(60));
    const Outcome want = by_search(stops, text);
    StopMatcher matcher(stops);
    std::string shown, fed;
    bool stopped = false;
    while (fed.size() < text.size() && !stopped) {
      const std::string piece = text.substr(fed.size(), draws.below(5) + 1);
      const auto step = matcher.feed(piece);
      fed += piece;
      shown += step.text;
      stopped = step.stopped;
      if (!by_search(stops, fed).stopped) {
        ASSERT_EQ(matcher.held(), must_hold(stops, fed)) << "seed " << seed;
      }
    }
    shown += matcher.finish().text;
    ASSERT_EQ(shown, want.text) << "seed " << seed;
    ASSERT_EQ(matcher.stopped_by(), want.by) << "seed " << seed;
  }
}

TEST(StopMatcher, TheCostIsLinearInTheText) {
  // A quadratic matcher needs 10^12 steps here.
  const std::string near_miss(1000, 'a');
  StopMatcher matcher({near_miss + "b"});
  const std::string piece(1000, 'a');
  size_t shown = 0;
  for (size_t i = 0; i < 1000; ++i) shown += matcher.feed(piece).text.size();
  EXPECT_EQ(shown, 999000u);
  EXPECT_EQ(matcher.held(), 1000u);
}

TEST(StopMatcher, ASteadyStepAllocatesNothing) {
  StopMatcher matcher({"own fox", "\n\nUser:"});
  const std::string piece = "some words \n\nUse";
  for (int i = 0; i < 3; ++i) matcher.feed(piece);
  const size_t before = allocations_so_far();
  for (int i = 0; i < 100; ++i) matcher.feed(piece);
  EXPECT_EQ(allocations_so_far(), before);
}

}  // namespace
}  // namespace larder
