#include "larder/generate/sampling.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <functional>
#include <limits>
#include <locale>
#include <string>

#include "larder/base/error.h"

namespace larder {
namespace {

std::string complaint(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  try {
    validate(params);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

TEST(SamplingParams, DefaultsAreOffAndValid) {
  EXPECT_NO_THROW(validate({}));
  EXPECT_FALSE(SamplingParams{}.do_sample);
}

TEST(SamplingParams, EdgesWithADocumentedResultAreValid) {
  EXPECT_EQ(complaint([](auto& p) { p.temperature = 0; }), "");
  EXPECT_EQ(complaint([](auto& p) { p.temperature = 1e-6; }), "");
  EXPECT_EQ(complaint([](auto& p) { p.top_p = 0; }), "");
  EXPECT_EQ(complaint([](auto& p) { p.top_k = std::numeric_limits<int64_t>::max(); }), "");
  EXPECT_EQ(complaint([](auto& p) { p.min_p = 1; }), "");
  EXPECT_EQ(complaint([](auto& p) { p.bad_words_ids = {{0}, {1, 2}}; }), "");
}

TEST(Case45, SettingsThatMakeNoSenseAreRefusedWithNameAndValue) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  struct Bad {
    std::function<void(SamplingParams&)> change;
    const char* part;
  };
  const Bad list[] = {
      {[&](auto& p) { p.temperature = nan; }, "temperature is nan"},
      {[&](auto& p) { p.temperature = -0.5; }, "temperature is -0.5"},
      {[&](auto& p) { p.temperature = infinity; }, "temperature is inf"},
      {[&](auto& p) { p.temperature = 1e300; }, "temperature is 1e+300"},
      {[&](auto& p) { p.top_k = -1; }, "top_k is -1"},
      {[&](auto& p) { p.top_p = nan; }, "top_p is nan"},
      {[&](auto& p) { p.top_p = 1.5; }, "top_p is 1.5"},
      {[&](auto& p) { p.top_p = -0.1; }, "top_p is -0.1"},
      {[&](auto& p) { p.min_p = 2; }, "min_p is 2"},
      {[&](auto& p) { p.typical_p = 0; }, "typical_p is 0"},
      {[&](auto& p) { p.typical_p = nan; }, "typical_p is nan"},
      {[&](auto& p) { p.epsilon_cutoff = 1; }, "epsilon_cutoff is 1"},
      {[&](auto& p) { p.eta_cutoff = -1; }, "eta_cutoff is -1"},
      {[&](auto& p) { p.repetition_penalty = 0; }, "repetition_penalty is 0"},
      {[&](auto& p) { p.repetition_penalty = -2; }, "repetition_penalty is -2"},
      {[&](auto& p) { p.repetition_penalty = nan; }, "repetition_penalty is nan"},
      {[&](auto& p) { p.no_repeat_ngram_size = -3; }, "no_repeat_ngram_size is -3"},
      {[&](auto& p) {
         p.bad_words_ids = {{1}, {}};
       },
       "bad_words_ids[1] is empty"},
      {[&](auto& p) {
         p.bad_words_ids = {{1, -7}};
       },
       "bad_words_ids[0] is -7"},
      {[&](auto& p) { p.min_new_tokens = -1; }, "min_new_tokens is -1"},
      {[&](auto& p) { p.min_length = -1; }, "min_length is -1"},
  };
  for (const Bad& bad : list)
    EXPECT_NE(complaint(bad.change).find(bad.part), std::string::npos)
        << bad.part << " not in: " << complaint(bad.change);
}

TEST(Case45, SeveralProblemsComeInOneLine) {
  const auto line = complaint([](auto& p) {
    p.temperature = -1;
    p.top_p = 7;
    p.min_length = -2;
  });
  EXPECT_EQ(line,
            "sampling settings: temperature is -1, must be 0 (greedy) or a finite number above 0; "
            "top_p is 7, must be in 0..1 (1 is off); min_length is -2, must be 0 (off) or above");
}

// Digits grouped and a comma for the point, as many a locale has it.
struct CommaPoint : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Case37, ErrorsShowNumbersWithAPointInEveryLocale) {
  const std::locale old = std::locale::global(std::locale(std::locale::classic(), new CommaPoint));
  const auto line = complaint([](auto& p) {
    p.top_p = 1.5;
    p.top_k = -1234567;
  });
  std::locale::global(old);
  EXPECT_NE(line.find("top_p is 1.5,"), std::string::npos) << line;
  EXPECT_NE(line.find("top_k is -1234567,"), std::string::npos) << line;
}

}  // namespace
}  // namespace larder
