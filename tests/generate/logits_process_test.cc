#include "larder/generate/logits_process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "larder/generate/philox.h"

namespace larder {
namespace {

constexpr float kGone = -std::numeric_limits<float>::infinity();
using Scores = std::vector<float>;
using Ids = std::vector<int32_t>;

Scores logs(std::initializer_list<double> probabilities) {
  Scores out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

size_t kept(const Scores& scores) {
  return scores.size() - static_cast<size_t>(std::count(scores.begin(), scores.end(), kGone));
}

TEST(Case46, TopPKeepsTheFewestThatReachTheMass) {
  const double top_p[] = {0, .39, .41, .69, .71, .91, 1};
  const size_t want[] = {1, 1, 2, 2, 3, 4, 4};
  SamplerScratch scratch(4);
  for (size_t i = 0; i < std::size(top_p); ++i) {
    Scores scores = logs({.4, .3, .2, .1});
    apply_top_p(scores, top_p[i], scratch);
    EXPECT_EQ(kept(scores), want[i]) << top_p[i];
    EXPECT_NE(scores[0], kGone);
  }
}

TEST(Case46, TopPAfterTopKWorksOnTheRenormalisedRest) {
  SamplerScratch scratch(4);
  Scores scores = logs({.4, .3, .2, .1});
  apply_top_k(scores, 1, scratch);
  apply_top_p(scores, .8, scratch);
  EXPECT_EQ(kept(scores), 1u);
  scores = logs({.4, .3, .2, .1});
  apply_top_k(scores, 2, scratch);
  apply_top_p(scores, .5, scratch);  // 4/7 is enough, where .4 was not
  EXPECT_EQ(kept(scores), 1u);
}

TEST(Case46, TopKAboveTheVocabularyKeepsAllAndTiesWithTheLastAreKept) {
  SamplerScratch scratch(5);
  Scores scores = {5, 4, 3, 2, 1};
  apply_top_k(scores, 99, scratch);
  EXPECT_EQ(kept(scores), 5u);
  scores = {2, 1, 1, 1, 0};
  apply_top_k(scores, 2, scratch);
  EXPECT_EQ(scores, (Scores{2, 1, 1, 1, kGone}));
}

TEST(Case46, MinPIsRelativeToTheMostProbable) {
  SamplerScratch scratch(4);
  Scores scores = logs({.4, .3, .2, .1});
  apply_min_p(scores, .6, scratch);
  EXPECT_EQ(kept(scores), 2u);
  scores = logs({.4, .3, .2, .1});
  apply_min_p(scores, .4, scratch);
  EXPECT_EQ(kept(scores), 3u);
}

TEST(Case46, RepetitionPenaltyIsOncePerDistinctId) {
  SamplerScratch scratch(4);
  Scores scores = {2, -1, 2, -1};
  apply_repetition_penalty(scores, Ids{0, 1, 0, 1, 1}, 2, scratch);
  EXPECT_EQ(scores, (Scores{1, -2, 2, -1}));
  // The set of seen ids begins empty at every call.
  apply_repetition_penalty(scores, Ids{0}, 2, scratch);
  EXPECT_EQ(scores, (Scores{.5, -2, 2, -1}));
}

TEST(LogitsProcess, RepetitionPenaltyPassesOverIdsOutsideTheVocabulary) {
  SamplerScratch scratch(2);
  Scores scores = {2, 2};
  apply_repetition_penalty(scores, Ids{-1, 2, 1000000, 1}, 2, scratch);
  EXPECT_EQ(scores, (Scores{2, 1}));
}

TEST(LogitsProcess, NoRepeatNgramForbidsWhatWouldCompleteASeenRun) {
  Scores scores(6, 1);
  apply_no_repeat_ngram(scores, Ids{1, 2, 3, 1, 2}, 3);
  EXPECT_EQ(scores, (Scores{1, 1, 1, kGone, 1, 1}));
  scores.assign(6, 1);
  apply_no_repeat_ngram(scores, Ids{0, 4}, 1);
  EXPECT_EQ(scores, (Scores{kGone, 1, 1, 1, kGone, 1}));
  scores.assign(6, 1);
  apply_no_repeat_ngram(scores, Ids{1, 1}, 2);
  EXPECT_EQ(scores, (Scores{1, kGone, 1, 1, 1, 1}));
  scores.assign(6, 1);
  for (const int64_t size : {0, 3, 50}) apply_no_repeat_ngram(scores, Ids{1, 1}, size);
  apply_no_repeat_ngram(scores, Ids{}, 1);
  EXPECT_EQ(kept(scores), 6u);
}

TEST(LogitsProcess, BadWordsMatchTheEndOfTheRow) {
  const std::vector<std::vector<int32_t>> words = {{5}, {1, 2, 0}, {9, 3}, {4, 4, 4, 4}};
  Scores scores(6, 1);
  apply_bad_words(scores, Ids{7, 1, 2}, words, {});
  EXPECT_EQ(scores, (Scores{kGone, 1, 1, 1, 1, kGone}));
}

TEST(LogitsProcess, ABadWordOneLongerThanTheRowIsForbiddenToo) {
  const std::vector<std::vector<int32_t>> words = {{1, 2, 0}};
  Scores scores(3, 1);
  apply_bad_words(scores, Ids{1, 2}, words, {});
  EXPECT_EQ(scores, (Scores{kGone, 1, 1}));
}

TEST(LogitsProcess, ABadWordThatIsTheEndTokenAloneIsPassedOver) {
  const std::vector<std::vector<int32_t>> words = {{2}, {1}, {0, 2}};
  Scores scores(3, 1);
  apply_bad_words(scores, Ids{1}, words, Ids{2});
  EXPECT_EQ(scores, (Scores{1, kGone, 1}));
}

TEST(Case42, MinimumLengthsForbidEveryListedEndIncludingZero) {
  Scores scores(4, 1);
  apply_min_new_tokens(scores, 2, 3, Ids{0, 3});
  EXPECT_EQ(scores, (Scores{kGone, 1, 1, kGone}));
  scores.assign(4, 1);
  apply_min_new_tokens(scores, 3, 3, Ids{0, 3});
  EXPECT_EQ(kept(scores), 4u);
  apply_min_length(scores, 9, 10, Ids{1, 77, -1});
  EXPECT_EQ(scores, (Scores{1, kGone, 1, 1}));
}

TEST(LogitsProcess, KeepSparesTheBestEvenBelowTheThreshold) {
  SamplerScratch scratch(4);
  const Scores scores = logs({.1, .7, .15, .05});
  const auto count_after = [&](auto filter) {
    Scores copy = scores;
    filter(copy);
    EXPECT_NE(copy[1], kGone);
    return kept(copy);
  };
  EXPECT_EQ(count_after([&](auto& s) { apply_top_k(s, 1, scratch, 3); }), 3u);
  EXPECT_EQ(count_after([&](auto& s) { apply_top_p(s, .1, scratch, 3); }), 3u);
  EXPECT_EQ(count_after([&](auto& s) { apply_min_p(s, .9, scratch, 2); }), 2u);
  EXPECT_EQ(count_after([&](auto& s) { apply_epsilon_cutoff(s, .5, scratch, 2); }), 2u);
  EXPECT_EQ(count_after([&](auto& s) { apply_eta_cutoff(s, .9, scratch, 3); }), 3u);
  EXPECT_EQ(count_after([&](auto& s) { apply_top_k(s, 1, scratch, 99); }), 4u);
  EXPECT_EQ(count_after([&](auto& s) { apply_top_p(s, .1, scratch, 99); }), 4u);
  EXPECT_EQ(count_after([&](auto& s) { apply_epsilon_cutoff(s, .5, scratch, 99); }), 4u);
}

TEST(LogitsProcess, TypicalKeepsWhatIsNearestToTheEntropyNotTheBest) {
  // Entropy 1.280; the surprises .916, 1.204, 1.609, 2.303 are .364, .076, .330, 1.023 away from
  // it.
  SamplerScratch scratch(4);
  Scores scores = logs({.4, .3, .2, .1});
  apply_typical_p(scores, .25, scratch);
  EXPECT_EQ(scores, (Scores{kGone, logs({.3})[0], kGone, kGone}));
  scores = logs({.4, .3, .2, .1});
  apply_typical_p(scores, .45, scratch);
  EXPECT_EQ(scores, (Scores{kGone, logs({.3})[0], logs({.2})[0], kGone}));
  scores = logs({.4, .3, .2, .1});
  apply_typical_p(scores, .55, scratch);
  EXPECT_EQ(kept(scores), 3u);
  EXPECT_EQ(scores[3], kGone);
}

TEST(LogitsProcess, ARowOfRemovedTokensStaysAsItIs) {
  SamplerScratch scratch(3);
  Scores scores(3, kGone);
  apply_top_k(scores, 1, scratch);
  apply_top_p(scores, .5, scratch);
  apply_min_p(scores, .5, scratch);
  apply_typical_p(scores, .5, scratch);
  apply_epsilon_cutoff(scores, .5, scratch);
  apply_eta_cutoff(scores, .5, scratch);
  EXPECT_EQ(scores, Scores(3, kGone));
}

// A plain reading of the reference for long rows, where the filters sort lazily.
Scores top_p_by_full_sort(Scores scores, double top_p) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  double total = 0, below = 0;
  for (const float score : scores) total += std::exp(static_cast<double>(score));
  Scores out = scores;
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    below += std::exp(static_cast<double>(scores[order[i]])) / total;
    if (static_cast<float>(below) <= static_cast<float>(1 - top_p)) out[order[i]] = kGone;
  }
  return out;
}

TEST(LogitsProcess, TopPOfALongRowEqualsAFullSort) {
  SamplerScratch scratch(5000);
  for (const double spread : {0.1, 3.0, 30.0}) {
    Scores scores(5000);
    for (size_t i = 0; i < scores.size(); ++i)
      scores[i] = static_cast<float>(spread * (uniform_at(7, i) - 0.5));
    for (const double top_p : {0.01, 0.3, 0.9, 0.99, 0.999999}) {
      Scores got = scores;
      apply_top_p(got, top_p, scratch);
      EXPECT_EQ(got, top_p_by_full_sort(scores, top_p)) << spread << " " << top_p;
    }
  }
}

}  // namespace
}  // namespace larder
