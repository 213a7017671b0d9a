// Speculative decoding: the next tokens are guessed cheaply, and one step of the model verifies all
// of them (Leviathan et al., "Fast inference from transformers via speculative decoding", 2023).
// A guess stands where the row's sampler chooses the same token, so what is generated is what would
// be generated without, greedy or drawn from a seed, whatever the guesses are worth.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "larder/generate/session.h"
#include "larder/generate/step_plan.h"

namespace larder {

// One row's share of a round.
struct Draft {
  int32_t row = 0;
  std::span<const int32_t> ids;  // its tokens so far, prompt included; the last one is not fed yet
  int64_t most = 0;              // guesses at most
  std::vector<int32_t> tokens;   // the guesses
  int64_t right = 0;             // how many of them stood, after the round
};

// Makes guesses for the rows of one Generation. Rows keep their number; those that have ended are
// no longer asked for.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Before anything runs: throws where it cannot guess for this model.
  virtual void begin(const Model& model) = 0;
  virtual int64_t max_tokens() const = 0;  // a round
  // Fills `tokens` of every draft, which are empty, with at most `most` ids.
  virtual void propose(std::span<Draft> drafts) = 0;
  // After the round; `ids` now has the tokens that stood and the one that came behind them.
  virtual void verified(std::span<const Draft> drafts) noexcept = 0;
};

// Names and the second default are those of transformers' GenerationConfig.
struct PromptLookupParams {
  int64_t prompt_lookup_num_tokens = 10;
  int64_t max_matching_ngram_size = 2;
};

// Guesses that what followed the row's last n tokens where they stood before follows again: the
// longest n first, then the latest place that has a whole guess behind it. Good for text that
// repeats its prompt (summaries, edits, code).
class PromptLookup final : public Drafter {
 public:
  explicit PromptLookup(const PromptLookupParams& params = {});  // throws for numbers below 1

  void begin(const Model& /*model*/) override {}
  int64_t max_tokens() const override { return params_.prompt_lookup_num_tokens; }
  void propose(std::span<Draft> drafts) override;
  void verified(std::span<const Draft> /*drafts*/) noexcept override {}

 private:
  PromptLookupParams params_;
};

struct AssistantParams {
  // Guesses of a row's first round. After a round in which all stood two more, else one less, in
  // 1..max_assistant_tokens (transformers' schedule "heuristic").
  int64_t num_assistant_tokens = 5;
  int64_t max_assistant_tokens = 16;
};

// Guesses with a smaller model of the same vocabulary, greedily, all rows at once. After every
// round its cache holds what the model's holds: all tokens but the newest.
class AssistantModel final : public Drafter {
 public:
  // The session's cache must be empty and able to step back. Where the model has windows, it makes
  // at most SessionOptions::rollback + 1 guesses a round. The session outlives this.
  explicit AssistantModel(Session& session, const AssistantParams& params = {});

  // Refuses a model with another number of ids, with both numbers.
  void begin(const Model& model) override;
  int64_t max_tokens() const override { return params_.max_assistant_tokens; }
  void propose(std::span<Draft> drafts) override;
  void verified(std::span<const Draft> drafts) noexcept override;

 private:
  int64_t room() const;
  int64_t most_steps(int32_t row) const;
  int64_t& length_of(int32_t row);
  void align(std::span<const Draft> drafts);
  void drop_wrong(std::span<const Draft> drafts);
  bool plan_missing(std::span<const Draft> drafts);
  void choose_lengths(std::span<const Draft> drafts);
  bool plan_guess(std::span<const Draft> drafts, int64_t guess);

  Session& session_;
  AssistantParams params_;
  StepPlan plan_;
  std::vector<int64_t> lengths_;  // by row: guesses of the next round
  std::vector<int64_t> wanted_, kept_;
};

}  // namespace larder
