// A row's ends and its text, without a model: what Generation and Engine share.
#include "larder/generate/row_output.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "larder/base/error.h"

namespace larder::test {
namespace {

using Ids = std::vector<int32_t>;

// Token i is piece i; the end gives what is left.
class Pieces final : public TokenText {
 public:
  explicit Pieces(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::string push(int32_t id) override { return pieces_.at(static_cast<size_t>(id)); }
  std::string finish() override { return "!"; }

 private:
  std::vector<std::string> pieces_;
};

class RowOutputs : public ::testing::Test {
 protected:
  RowOutputs() { info_.vocab_size = 8; }
  RowOutput make(const Request& request, std::vector<std::string> pieces = {}) {
    MakeTokenText text;
    if (!pieces.empty())
      text = [pieces](std::span<const int32_t>) { return std::make_unique<Pieces>(pieces); };
    return {request.prompt_ids, request.max_new_tokens, request, info_, text, scratch_};
  }
  // Takes 0, 1, 2 ... until the row ends; gives what was shown.
  std::string run(RowOutput& row) {
    std::string shown;
    for (int32_t id = 0; row.running(); ++id) {
      row.take(id, [&](int32_t, std::string_view text) {
        shown.append(text);
        return true;
      });
    }
    return shown;
  }

  ModelInfo info_;
  SamplerScratch scratch_{8};
};

TEST_F(RowOutputs, Case42_AnyEndTokenEndsARowAndThoseOfThePromptDoNot) {
  for (const auto& [eos, count] : {std::pair<Ids, size_t>{{5, 0}, 1}, {{3, 1}, 2}, {{7}, 4}}) {
    RowOutput row = make({{7, 7}, 4, {}, eos, {}});
    run(row);
    EXPECT_EQ(row.result().output_ids.size(), count);
    EXPECT_EQ(row.result().finish_reason, count < 4 ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(row.length(), static_cast<int64_t>(2 + count));
  }
}

TEST_F(RowOutputs, Case43_NothingOfAStopStringIsShownHoweverTheTextIsCut) {
  RowOutput row = make({{1}, 8, {}, {}, {"own fox"}}, {"The quick br", "own", " fox jumps"});
  EXPECT_EQ(run(row), "The quick br");
  EXPECT_EQ(row.result().text, "The quick br");
  EXPECT_EQ(row.result().finish_reason, FinishReason::kStop);
}

TEST_F(RowOutputs, Case43_AtAnotherEndTheHeldBackTextIsShown) {
  RowOutput row = make({{1}, 2, {}, {}, {"own fox"}}, {"The quick br", "own", " fox jumps"});
  EXPECT_EQ(run(row), "The quick brown!");
  EXPECT_EQ(row.result().finish_reason, FinishReason::kLength);
  RowOutput cancelled = make({{1}, 8, {}, {}, {"own fox"}}, {"br", "own"});
  std::string shown;
  const auto show = [&](int32_t, std::string_view text) {
    shown.append(text);
    return false;
  };
  cancelled.take(0, show);
  EXPECT_EQ(shown, "br!");
  EXPECT_EQ(cancelled.result().finish_reason, FinishReason::kCancelled);
}

TEST_F(RowOutputs, WhatTheCallbackThrowsComesThroughAndTheTokenStands) {
  RowOutput row = make({{1}, 8, {}, {}, {}});
  EXPECT_THROW(
      row.take(3, [](int32_t, std::string_view) -> bool { throw std::runtime_error("x"); }),
      std::runtime_error);
  EXPECT_EQ(row.ids(), (Ids{1, 3}));
  EXPECT_TRUE(row.running());
}

TEST_F(RowOutputs, ChoosingChangesNothingWhenTheLogitsAreNone) {
  RowOutput row = make({{1, 2}, 8, {}, {}, {}});
  std::vector<float> logits(8, std::numeric_limits<float>::quiet_NaN());
  EXPECT_THROW(row.choose(logits), Error);
  EXPECT_THROW(row.choose(logits, Ids{4, 5}), Error);
  EXPECT_EQ(row.ids(), (Ids{1, 2}));
  logits.assign(8, 0);
  logits[6] = 1;
  EXPECT_EQ(row.choose(logits, Ids{4, 5}), 6);
  EXPECT_EQ(row.ids(), (Ids{1, 2}));
}

TEST_F(RowOutputs, ARowWithoutNewTokensHasEnded) {
  EXPECT_EQ(make({{1}, 0, {}, {}, {}}).result().finish_reason, FinishReason::kLength);
}

}  // namespace
}  // namespace larder::test
