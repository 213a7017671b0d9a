// Chooses the next token of one row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "larder/generate/logits_process.h"
#include "larder/generate/sampling.h"

namespace larder {

// What a sampler must know about its row besides the user's settings.
struct SamplerRow {
  size_t vocab_size = 0;         // rows of logits, not ids of the tokenizer
  size_t prompt_length = 0;      // tokens, left padding not counted
  std::vector<int32_t> eos_ids;  // empty: none; ids outside the vocabulary never match
  size_t left_padding = 0;       // counted by min_length alone
};

// One a row. Holds no state that a step changes: the token at position p of the row draws random
// number (seed, p), so the same seed gives the same tokens alone, in a batch, at any thread count,
// and after a restore. Rows that shall differ are given different seeds. May be moved and copied.
// The scratch is the caller's, must outlive this, and is for one thread at a time.
class Sampler {
 public:
  // Throws Error (all problems in one line) for settings that make no sense, a bad word outside the
  // vocabulary, and a scratch of another size.
  Sampler(SamplingParams params, SamplerRow row, SamplerScratch& scratch);

  // Needs: logits [vocab_size]; ids_so_far with the prompt, without left padding. Gives an id.
  // Overwrites the logits. Greedy search takes the first of equal maxima. Throws Error for logits
  // with a NaN or +inf, for -inf alone, and where the settings forbid every token. Allocates
  // nothing.
  int32_t next(std::span<float> logits, std::span<const int32_t> ids_so_far) const;

  // For beam search: turns the logits into log-probabilities and applies to these, as the reference
  // does, what greedy search applies to logits; a forbidden token becomes -inf, and nothing is
  // normalised again. Throws as next() does for logits that are no logits.
  void to_log_probs(std::span<float> logits, std::span<const int32_t> ids_so_far) const;

  bool greedy() const { return greedy_; }
  const SamplingParams& params() const { return params_; }

 private:
  void forbid(std::span<float> logits, std::span<const int32_t> ids) const;
  void filter(std::span<float> logits) const;
  int32_t draw(std::span<const float> logits, uint64_t position) const;

  SamplingParams params_;
  SamplerRow row_;
  SamplerScratch* scratch_;
  bool greedy_;
};

}  // namespace larder
