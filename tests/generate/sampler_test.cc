#include "larder/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "larder/base/error.h"
#include "larder/generate/philox.h"
#include "tests/support/allocation_counter.h"

namespace larder {
namespace {

constexpr float kGone = -std::numeric_limits<float>::infinity();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using Scores = std::vector<float>;
using Ids = std::vector<int32_t>;

SamplingParams sampled(uint64_t seed) {
  SamplingParams params;
  params.do_sample = true;
  params.seed = seed;
  return params;
}

int32_t next_of(const SamplingParams& params, Scores scores, const Ids& ids = {0}) {
  SamplerScratch scratch(scores.size());
  return Sampler(params, {scores.size(), ids.size(), {}}, scratch).next(scores, ids);
}

std::string complaint(const SamplingParams& params, const Scores& scores, const Ids& ids = {0}) {
  try {
    next_of(params, scores, ids);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Sampler, GreedyTakesTheFirstOfEqualMaxima) {
  EXPECT_EQ(next_of({}, {1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(next_of({}, {kGone, kGone, -5}), 2);
  Scores many(100, -1);
  many[97] = many[99] = 0;
  EXPECT_EQ(next_of({}, many), 97);
}

TEST(Sampler, GreedyIgnoresTheFiltersOfSampling) {
  SamplingParams params;
  params.temperature = 100;
  params.typical_p = .1;  // would remove the best
  EXPECT_EQ(next_of(params, {5, 1, 1, 1, 1, 1, 1}), 0);
}

TEST(Case46, TemperatureZeroIsGreedyWithoutDividing) {
  for (const double zero : {0.0, 1e-60}) {
    auto params = sampled(1);
    params.temperature = zero;
    EXPECT_EQ(next_of(params, {1, 3, 3, kGone}), 1);
  }
}

TEST(Case46, ATinyTemperatureStaysFinite) {
  for (const double tiny : {1e-6, 1e-30, 1e-44}) {
    auto params = sampled(1);
    params.temperature = tiny;
    params.top_p = .9;
    params.min_p = .1;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      params.seed = seed;
      EXPECT_EQ(next_of(params, {-3e38f, 20, 1e37f, kGone, 3e36f}), 2) << tiny;
    }
  }
}

TEST(Case46, LogitsThatAreNotNumbersAreRefused) {
  for (const bool sample : {false, true}) {
    SamplingParams params = sampled(1);
    params.do_sample = sample;
    EXPECT_TRUE(holds(complaint(params, Scores(9, kNan)), "the logit of id 0 is NaN"));
    EXPECT_TRUE(holds(complaint(params, {1, 2, 3, kNan}), "the logit of id 3 is NaN"));
    EXPECT_TRUE(holds(complaint(params, {1, kInfinity}), "the logit of id 1 is infinite"));
    EXPECT_TRUE(holds(complaint(params, Scores(9, kGone)), "every logit is -inf"));
  }
}

TEST(Sampler, ANaNOfAForbiddenTokenIsStillRefused) {
  SamplingParams params;
  params.bad_words_ids = {{1}};
  EXPECT_TRUE(holds(complaint(params, {1, kNan, 3}), "the logit of id 1 is NaN"));
}

TEST(Sampler, SettingsThatForbidEveryTokenAreNamed) {
  SamplingParams params;
  params.bad_words_ids = {{0}, {1}};
  EXPECT_TRUE(holds(complaint(params, {1, 2}), "forbid every token"));
}

TEST(Case45, TheSamplerRefusesWhatItsRowCannotHold) {
  SamplerScratch scratch(8);
  SamplingParams params;
  EXPECT_THROW(Sampler(params, {0, 0, {}}, scratch), Error);
  EXPECT_THROW(Sampler(params, {9, 0, {}}, scratch), Error);
  params.bad_words_ids = {{1}, {2, 8}};
  EXPECT_THROW(Sampler(params, {8, 0, {}}, scratch), Error);
  params = {};
  params.temperature = std::nan("");
  EXPECT_THROW(Sampler(params, {8, 0, {}}, scratch), Error);
  Scores short_row(7);
  EXPECT_THROW(Sampler({}, {8, 0, {}}, scratch).next(short_row, {}), Error);
}

TEST(Case42, MinNewTokensForbidsEveryListedEndForThatManySteps) {
  SamplingParams params;
  params.min_new_tokens = 3;
  SamplerScratch scratch(5);
  const Sampler sampler(params, {5, 2, {0, 3}}, scratch);
  Ids ids = {3, 0};  // ends in the prompt end nothing and are no hint
  for (int step = 0; step < 5; ++step) {
    Scores scores = {9, 1, 2, 8, 0};
    ids.push_back(sampler.next(scores, ids));
  }
  EXPECT_EQ(ids, (Ids{3, 0, 2, 2, 2, 0, 0}));
}

TEST(Case42, MinLengthCountsThePromptAndItsLeftPadding) {
  SamplingParams params;
  params.min_length = 6;
  SamplerScratch scratch(2);
  Scores scores = {9, 1};
  EXPECT_EQ(Sampler(params, {2, 3, {0}}, scratch).next(scores, Ids{1, 1, 1}), 1);
  scores = {9, 1};
  EXPECT_EQ(Sampler(params, {2, 3, {0}, 3}, scratch).next(scores, Ids{1, 1, 1}), 0);
}

// 40 draws over 500 ids, the scores a function of the position alone.
Ids run(const Sampler& sampler, uint64_t salt, size_t steps = 40) {
  Ids ids = {1, 2, 3};
  Scores scores(500);
  for (size_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < scores.size(); ++i)
      scores[i] = static_cast<float>(8 * uniform_at(salt, ids.size() * 500 + i));
    ids.push_back(sampler.next(scores, ids));
  }
  return ids;
}

SamplingParams everything(uint64_t seed) {
  auto params = sampled(seed);
  params.temperature = 1.3;
  params.top_k = 300;
  params.top_p = .95;
  params.min_p = .01;
  params.typical_p = .95;
  params.epsilon_cutoff = 1e-4;
  params.eta_cutoff = 1e-4;
  params.repetition_penalty = 1.1;
  params.no_repeat_ngram_size = 3;
  params.bad_words_ids = {{7}, {1, 2}};
  params.min_new_tokens = 5;
  return params;
}

TEST(Case46, TheSameSeedGivesTheSameTokensAloneAndInterleaved) {
  SamplerScratch scratch(500);
  const SamplerRow row{500, 3, {4}};
  const Sampler a(everything(1), row, scratch), b(everything(2), row, scratch);
  const Ids alone_a = run(a, 9), alone_b = run(b, 9);
  EXPECT_NE(alone_a, alone_b);
  // Step by step in turn, on one scratch, as a batch does it.
  Ids ids_a = {1, 2, 3}, ids_b = ids_a;
  for (size_t step = 0; step < 40; ++step) {
    Scores scores_a(500), scores_b;
    for (size_t i = 0; i < 500; ++i)
      scores_a[i] = static_cast<float>(8 * uniform_at(9, ids_a.size() * 500 + i));
    scores_b = scores_a;
    ids_b.push_back(b.next(scores_b, ids_b));
    ids_a.push_back(a.next(scores_a, ids_a));
  }
  EXPECT_EQ(ids_a, alone_a);
  EXPECT_EQ(ids_b, alone_b);
}

TEST(Case49, ThreadsWithAScratchEachDrawWhatOneThreadDraws) {
  std::vector<Ids> serial(8), parallel(8);
  for (size_t i = 0; i < 8; ++i) {
    SamplerScratch scratch(500);
    serial[i] = run(Sampler(everything(i), {500, 3, {4}}, scratch), 11);
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i)
    threads.emplace_back([&parallel, i] {
      SamplerScratch scratch(500);
      parallel[i] = run(Sampler(everything(i), {500, 3, {4}}, scratch), 11);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(serial, parallel);
}

TEST(Sampler, ARestoredRowGoesOnAsIfNothingHadHappened) {
  SamplerScratch scratch(500), other(500);
  const Ids whole = run(Sampler(everything(5), {500, 3, {4}}, scratch), 13, 40);
  Ids ids(whole.begin(), whole.begin() + 20);
  const Sampler restored(everything(5), {500, 3, {4}}, other);
  while (ids.size() < whole.size()) {
    Scores scores(500);
    for (size_t i = 0; i < 500; ++i)
      scores[i] = static_cast<float>(8 * uniform_at(13, ids.size() * 500 + i));
    ids.push_back(restored.next(scores, ids));
  }
  EXPECT_EQ(ids, whole);
}

// Position p of seed s is the p-th number of the documented generator: the tokens are part of the
// interface and may not change silently.
TEST(Sampler, DrawsByInverseCumulativeOfTheDocumentedGenerator) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const double u = uniform_at(seed, 2);
    const int32_t want = u < .25 ? 0 : u < .5 ? 1 : u < .75 ? 2 : 3;
    EXPECT_EQ(next_of(sampled(seed), {0, 0, 0, 0}, {1, 1}), want);
  }
}

TEST(Sampler, AHundredThousandDrawsFollowTheProbabilities) {
  const double probabilities[] = {.5, .25, .15, .07, .03, 0};
  Scores logs;
  for (const double p : probabilities) logs.push_back(static_cast<float>(std::log(p)));
  SamplerScratch scratch(6);
  const Sampler sampler(sampled(2024), {6, 0, {}}, scratch);
  const Ids ids(100000, 0);
  std::vector<double> count(6, 0);
  for (size_t n = 0; n < ids.size(); ++n) {
    Scores scores = logs;
    count[static_cast<size_t>(sampler.next(scores, std::span(ids).first(n)))] += 1;
  }
  for (size_t i = 0; i < 6; ++i) {
    // Five standard deviations of a binomial count.
    const double bound = 5 * std::sqrt(100000 * probabilities[i] * (1 - probabilities[i]));
    EXPECT_NEAR(count[i], 100000 * probabilities[i], bound) << i;
  }
}

TEST(Sampler, OverASpreadOfSeedsTheFirstDrawFollowsTheProbabilitiesToo) {
  double heads = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) heads += next_of(sampled(seed), {0, 0}) == 0;
  EXPECT_NEAR(heads, 5000, 250);
}

TEST(Sampler, TopKOneIsGreedyForEverySeed) {
  auto params = sampled(0);
  params.top_k = 1;
  params.temperature = 5;
  for (params.seed = 0; params.seed < 50; ++params.seed)
    EXPECT_EQ(next_of(params, {1, 2, 4, 3}), 2);
}

size_t allocations_of_a_step(const SamplingParams& params) {
  constexpr size_t kVocab = 3000;
  SamplerScratch scratch(kVocab);
  const Sampler sampler(params, {kVocab, 3, {4, 5}}, scratch);
  Scores scores(kVocab);
  const Ids ids = {1, 2, 3, 1, 2};
  const size_t before = allocations_so_far();
  for (size_t step = 0; step < 10; ++step) {
    for (size_t i = 0; i < kVocab; ++i) scores[i] = static_cast<float>(8 * uniform_at(step, i));
    EXPECT_GE(sampler.next(scores, ids), 0);
  }
  return allocations_so_far() - before;
}

TEST(Sampler, NoStepAllocates) {
  const size_t before = allocations_so_far();
  const auto owner = std::make_unique<int>(1);
  ASSERT_GT(allocations_so_far(), before) << "the counter does not count";
  auto greedy = everything(1);
  greedy.do_sample = false;
  EXPECT_EQ(allocations_of_a_step({}), 0u);
  EXPECT_EQ(allocations_of_a_step(greedy), 0u);
  EXPECT_EQ(allocations_of_a_step(sampled(1)), 0u);
  EXPECT_EQ(allocations_of_a_step(everything(1)), 0u);
}

}  // namespace
}  // namespace larder
