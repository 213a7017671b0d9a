// The logits processors of transformers 4.57 as functions over one row. A removed token becomes
// -inf. In generation they run in the order in which they are declared here; those from
// apply_temperature on are for sampling only.
//
// Everywhere: `scores` is [vocab_size] and is changed in place; `ids` are the row's tokens, prompt
// included and left padding not; ids outside the vocabulary are passed over; `keep` is the
// reference's min_tokens_to_keep, at least 1. Scores must hold no NaN and no +inf. A row of -inf
// alone is left as it is. Nothing here allocates, and no two threads may share a scratch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace larder {

// A token and what it is ordered by.
struct Candidate {
  float key;
  int32_t id;
};

// Working memory for one row at a time, sized once: 20 bytes a token of the vocabulary. Owned by
// the caller; rows may use one after another.
class SamplerScratch {
 public:
  explicit SamplerScratch(size_t vocab_size);

  size_t vocab_size() const { return weights_.size(); }
  std::span<Candidate> candidates() { return candidates_; }
  std::span<double> weights() { return weights_; }

  // A set of ids that empties in constant time. `mark` gives false if the id was in it.
  void unmark_all();
  bool mark(int32_t id) {
    uint32_t& stamp = stamps_[static_cast<size_t>(id)];
    if (stamp == round_) return false;
    stamp = round_;
    return true;
  }
  bool marked(size_t id) const { return stamps_[id] == round_; }

 private:
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
  std::vector<uint32_t> stamps_;
  uint32_t round_ = 1;
};

// Divides the scores of seen tokens by `penalty`, or multiplies negative ones; once per distinct
// id. Costs O(ids), not O(vocabulary).
void apply_repetition_penalty(std::span<float> scores, std::span<const int32_t> ids, double penalty,
                              SamplerScratch& scratch);
// Forbids what would complete a run of `size` ids that is already there. Size 1 forbids all seen.
void apply_no_repeat_ngram(std::span<float> scores, std::span<const int32_t> ids, int64_t size);
// Forbids the last id of each word whose other ids end the row. A word that is one of `eos_ids`
// alone is passed over. (Unlike the reference, a word one longer than the row counts too.)
void apply_bad_words(std::span<float> scores, std::span<const int32_t> ids,
                     std::span<const std::vector<int32_t>> words, std::span<const int32_t> eos_ids);
// Forbids every one of `eos_ids` while `length` (prompt and left padding included) is below.
void apply_min_length(std::span<float> scores, int64_t length, int64_t min_length,
                      std::span<const int32_t> eos_ids);
// The same by the number of new tokens so far.
void apply_min_new_tokens(std::span<float> scores, int64_t new_tokens, int64_t min_new_tokens,
                          std::span<const int32_t> eos_ids);

// Needs: temperature > 0 as a float.
void apply_temperature(std::span<float> scores, double temperature);
// Keeps the k best and what ties with the k-th.
void apply_top_k(std::span<float> scores, int64_t top_k, SamplerScratch& scratch, size_t keep = 1);
// Removes, from the least probable up, while their sum is at most 1 - top_p. Of equal scores the
// lower id goes first.
void apply_top_p(std::span<float> scores, double top_p, SamplerScratch& scratch, size_t keep = 1);
// Removes what is less probable than min_p times the most probable.
void apply_min_p(std::span<float> scores, double min_p, SamplerScratch& scratch, size_t keep = 1);
// Keeps the tokens whose surprise is nearest to the entropy, up to a mass of typical_p (Meister et
// al., "Locally typical sampling", 2022).
void apply_typical_p(std::span<float> scores, double typical_p, SamplerScratch& scratch,
                     size_t keep = 1);
// Removes what is less probable than epsilon (Hewitt et al., "Truncation sampling as language model
// desmoothing", 2022; eta too).
void apply_epsilon_cutoff(std::span<float> scores, double epsilon, SamplerScratch& scratch,
                          size_t keep = 1);
// Removes what is less probable than min(epsilon, sqrt(epsilon) * exp(-entropy)).
void apply_eta_cutoff(std::span<float> scores, double epsilon, SamplerScratch& scratch,
                      size_t keep = 1);

// The softmax without its division: weights[i] = exp(scores[i] - max), in f64, summed in the order
// of the ids. The total is 0 when every score is -inf (the weights then say nothing).
struct SoftmaxSum {
  float max;
  double total;
};
SoftmaxSum softmax_weights(std::span<const float> scores, std::span<double> weights);

// The largest, or -inf of none. No order of its own: eight maxima side by side.
float largest(std::span<const float> scores);

}  // namespace larder
