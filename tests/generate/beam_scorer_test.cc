#include "larder/generate/beam_scorer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "tests/support/error_of.h"

namespace larder::test {
namespace {

using Ids = std::vector<int32_t>;

enum : int32_t { kPad, kEnd, kA, kB, kC };
constexpr size_t kVocab = 5;

// Log-probabilities that depend on the last token only.
std::array<float, kVocab> after(int32_t last) {
  std::array<double, kVocab> p{};
  if (last == kA) p = {0, .05, .04, .56, .35};
  if (last == kB) p = {0, .34, .29, .20, .17};
  if (last == kC) p = {0, .88, .06, .04, .02};
  std::array<float, kVocab> logs{};
  for (size_t i = 0; i < kVocab; ++i) logs[i] = static_cast<float>(std::log(p[i]));
  return logs;
}

void advance(BeamScorer& scorer) {
  for (size_t beam = 0; beam < scorer.num_beams(); ++beam)
    scorer.consider(beam, after(scorer.ids(beam).back()));
  scorer.advance();
}

std::vector<BeamScorer::Sequence> search(EarlyStopping stopping, double exponent) {
  BeamScorer scorer({2, exponent, stopping, 2}, kVocab, Ids{kA}, {kEnd}, 4);
  while (!scorer.done()) advance(scorer);
  return scorer.best();
}

void expect_pair(const std::vector<BeamScorer::Sequence>& found, const Ids& first, double score,
                 const Ids& second, double second_score) {
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].ids, first);
  EXPECT_NEAR(found[0].score, score, 6e-5);
  EXPECT_EQ(found[1].ids, second);
  EXPECT_NEAR(found[1].score, second_score, 6e-5);
}

TEST(Case44, BeamsHaveTheScoresOfTheirOwnLengths) {
  for (const EarlyStopping stopping : {EarlyStopping::kTrue, EarlyStopping::kFalse}) {
    expect_pair(search(stopping, 0), {kC, kEnd}, -1.1777, {kB, kEnd}, -1.6586);
    expect_pair(search(stopping, 1), {kC, kEnd}, -0.5888, {kB, kEnd}, -0.8293);
    expect_pair(search(stopping, 2), {kC, kEnd}, -0.2944, {kB, kEnd}, -0.4147);
    expect_pair(search(stopping, -1), {kC, kEnd}, -2.3553, {kB, kEnd}, -3.3173);
  }
}

TEST(Case44, NeverGoesOnWhileALongerBeamCouldWin) {
  expect_pair(search(EarlyStopping::kNever, 1), {kC, kEnd}, -0.5888, {kB, kA, kC, kEnd}, -0.7488);
  expect_pair(search(EarlyStopping::kNever, 2), {kB, kA, kC, kEnd}, -0.1872, {kB, kA, kB, kEnd},
              -0.2173);
  expect_pair(search(EarlyStopping::kNever, 0), {kC, kEnd}, -1.1777, {kB, kEnd}, -1.6586);
  expect_pair(search(EarlyStopping::kNever, -1), {kC, kEnd}, -2.3553, {kB, kEnd}, -3.3173);
}

TEST(Case44, OneBeamIsGreedySearchWithAScore) {
  BeamScorer scorer({}, kVocab, Ids{kA}, {kEnd}, 4);
  while (!scorer.done()) advance(scorer);
  ASSERT_EQ(scorer.best().size(), 1u);
  EXPECT_EQ(scorer.best()[0].ids, (Ids{kB, kEnd}));
  EXPECT_NEAR(scorer.best()[0].score, (std::log(.56) + std::log(.34)) / 2, 1e-6);
}

TEST(Case45, BeamSettingsThatMakeNoSenseAreNamedAllAtOnce) {
  const auto refusal = [](const BeamParams& params) { return error_of([&] { validate(params); }); };
  EXPECT_EQ(refusal({2, 1.0, EarlyStopping::kFalse, 2}), "");
  EXPECT_NE(refusal({2, 1.0, EarlyStopping::kFalse, 3})
                .find("num_return_sequences is 3, must be at most num_beams, which is 2"),
            std::string::npos);
  EXPECT_NE(refusal({1, 1.0, EarlyStopping::kFalse, 2}).find("num_return_sequences is 2"),
            std::string::npos);
  const std::string two = refusal({0, std::nan(""), EarlyStopping::kFalse, 1});
  EXPECT_NE(two.find("num_beams is 0"), std::string::npos) << two;
  EXPECT_NE(two.find("length_penalty is nan"), std::string::npos) << two;
  EXPECT_NE(refusal({2, 1.0, EarlyStopping::kFalse, 0}).find("num_return_sequences is 0"),
            std::string::npos);
  EXPECT_NE(error_of([] { BeamScorer({6}, kVocab, Ids{kA}, {}, 4); }).find("vocabulary's 5 ids"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              parse_early_stopping("--early-stopping", "yes");
            }).find("\"yes\", must be true, false or never"),
            std::string::npos);
}

TEST(BeamScorer, SourcesSayWhichBeamIsContinued) {
  BeamScorer scorer({3, 0.0, EarlyStopping::kFalse, 1}, kVocab, Ids{kA}, {}, 4);
  advance(scorer);
  ASSERT_EQ(scorer.num_beams(), 3u) << "the prompt's best three";
  for (size_t beam = 0; beam < 3; ++beam) EXPECT_EQ(scorer.source(beam), 0);
  advance(scorer);
  // .35 * .88, .56 * .34, .56 * .29
  EXPECT_EQ(scorer.source(0), 1);
  EXPECT_EQ(scorer.source(1), 0);
  EXPECT_EQ(scorer.source(2), 0);
  const auto ids = scorer.ids(2);
  EXPECT_EQ(Ids(ids.begin(), ids.end()), (Ids{kA, kB, kA}));
}

TEST(BeamScorer, TheLastTokenEndsEveryBeam) {
  BeamScorer scorer({2, 1.0, EarlyStopping::kFalse, 2}, kVocab, Ids{kA}, {}, 1);
  advance(scorer);
  EXPECT_TRUE(scorer.done());
  expect_pair(scorer.best(), {kB}, std::log(.56), {kC}, std::log(.35));
}

TEST(BeamScorer, ARoundMayBeginAnew) {
  BeamScorer one({2, 1.0, EarlyStopping::kNever, 2}, kVocab, Ids{kA}, {kEnd}, 4), other = one;
  while (!one.done()) {
    one.consider(0, after(kC));
    advance(one);
    advance(other);
    EXPECT_EQ(one.num_beams(), other.num_beams());
  }
  EXPECT_EQ(one.best()[1].ids, other.best()[1].ids);
}

TEST(BeamScorer, WhatIsImpossibleIsNoBeam) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  BeamScorer scorer({2, 1.0, EarlyStopping::kFalse, 2}, kVocab, Ids{kA}, {kEnd}, 2);
  const std::array<float, kVocab> one = {kNone, kNone, kNone, -0.5f, kNone};
  scorer.consider(0, one);
  EXPECT_FALSE(scorer.stuck());
  scorer.advance();
  EXPECT_EQ(scorer.num_beams(), 1u);
  std::array<float, kVocab> nothing{};
  nothing.fill(kNone);
  scorer.consider(0, nothing);
  EXPECT_TRUE(scorer.stuck());
  scorer.consider(0, one);
  scorer.advance();
  ASSERT_EQ(scorer.best().size(), 1u) << "there is one sequence only";
  EXPECT_EQ(scorer.best()[0].score, -0.5);
}

TEST(BeamScorer, StoppingCountsWhatIsUnderWay) {
  BeamScorer scorer({2, 1.0, EarlyStopping::kFalse, 2}, kVocab, Ids{kA}, {kEnd}, 9);
  scorer.stop();
  EXPECT_TRUE(scorer.done() && scorer.best().empty());
  BeamScorer later({2, 1.0, EarlyStopping::kFalse, 2}, kVocab, Ids{kA}, {kEnd}, 9);
  advance(later);
  later.stop();
  expect_pair(later.best(), {kB}, std::log(.56), {kC}, std::log(.35));
}

}  // namespace
}  // namespace larder::test
