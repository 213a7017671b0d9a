// Beam search without a model: which continuations of one prompt are kept, from log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace larder {

// When a search ends although beams could go on: once num_beams sequences have ended and ...
enum class EarlyStopping : uint8_t {
  kFalse,  // the best beam, scored at its present length, is no better than the worst of them
  kTrue,   // at once
  kNever,  // no beam can become better than the worst of them, up to the longest length
};
// "true", "false", "never"; throws Error that names the flag for anything else.
EarlyStopping parse_early_stopping(std::string_view what, std::string_view text);

// Names and defaults are those of transformers' GenerationConfig.
struct BeamParams {
  int64_t num_beams = 1;
  // A sequence's score is the sum of its log-probabilities / length ** length_penalty, where the
  // length is that of the new tokens, the end token included.
  double length_penalty = 1.0;
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  int64_t num_return_sequences = 1;
};
// Throws one Error with every field that makes no sense and its value.
void validate(const BeamParams& params);

// The search over the continuations of one prompt, as transformers 4.57 does it. There are
// max(2, 1 + ends) * num_beams candidates; those that have not ended go on, and one that has ended
// counts if it is among the first num_beams. Of equal candidates the one of the better beam goes
// first, then the lower id. Candidates of probability 0 do not exist, so there may be fewer beams
// than num_beams.
class BeamScorer {
 public:
  struct Sequence {
    std::vector<int32_t> ids;  // new tokens
    double score;
  };

  // Needs: max_new_tokens >= 1.
  BeamScorer(const BeamParams& params, size_t vocab_size, std::span<const int32_t> prompt,
             std::vector<int32_t> eos_ids, int64_t max_new_tokens);

  // Beams that go on, the best first: 1 at the beginning, none when done.
  size_t num_beams() const { return live_; }
  bool done() const { return live_ == 0; }
  // Prompt and new tokens.
  std::span<const int32_t> ids(size_t beam) const { return beams_[beam].ids; }
  // The index that the beam whose continuation it is had before advance().
  int32_t source(size_t beam) const { return beams_[beam].source; }
  int64_t new_tokens() const { return new_tokens_; }

  // Every beam in order, beam 0 first, then advance(). log_probs: [vocab_size], -inf for what is
  // forbidden. Until advance() nothing has changed, and beam 0 may begin anew.
  void consider(size_t beam, std::span<const float> log_probs);
  void advance();
  // After the last beam was considered: there is nothing to go on with and nothing to give.
  bool stuck() const { return considered_ == live_ && candidates_.empty() && ended_.empty(); }
  // Ends the search; beams under way count as sequences of their present length.
  void stop();

  // The best num_return_sequences of those that have ended, best first. Fewer where there are no
  // more, as when all tokens but one are forbidden.
  std::vector<Sequence> best() const;

 private:
  struct Beam {
    std::vector<int32_t> ids;
    double sum = 0;  // of log-probabilities
    int32_t source = 0;
  };
  struct Candidate {
    double sum;
    int32_t beam, id;
  };
  static bool better(const Candidate& a, const Candidate& b);
  double score_of(double sum, int64_t length) const;
  void end(std::span<const int32_t> ids, int32_t last, double sum);
  bool can_improve() const;

  BeamParams params_;
  size_t vocab_size_, prompt_size_;
  std::vector<int32_t> eos_ids_;
  int64_t max_new_tokens_, new_tokens_ = 0;
  size_t most_candidates_;
  std::vector<Candidate> candidates_;  // a heap, the worst on top
  std::vector<Beam> beams_, next_;     // the first live_ count; the others keep their memory
  size_t live_ = 1, considered_ = 0;
  std::vector<Sequence> ended_;  // best first, at most num_beams
};

}  // namespace larder
