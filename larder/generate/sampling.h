// What a user may ask of the choice of the next token.
#pragma once

#include <cstdint>
#include <vector>

namespace larder {

// The settings of one request. Names are those of transformers' GenerationConfig; every default is
// "off", so that a default object means plain greedy search. A plain value: copy it, share it
// between threads. Results that a caller may rely on:
// - temperature 0 is greedy search, without a division; so is any that is 0 as a float.
// - top_p 0 keeps one token; top_k 0 is off, and above the vocabulary keeps all.
// - Tokens that tie with the k-th of top_k are kept.
// - No filter ever removes the last token.
// - min_length counts the prompt (and its left padding, as the reference does), min_new_tokens does
//   not.
struct SamplingParams {
  bool do_sample = false;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double typical_p = 1.0;
  double epsilon_cutoff = 0.0;
  double eta_cutoff = 0.0;
  double repetition_penalty = 1.0;
  int64_t no_repeat_ngram_size = 0;
  std::vector<std::vector<int32_t>> bad_words_ids;
  int64_t min_new_tokens = 0;
  int64_t min_length = 0;
  uint64_t seed = 0;
};

// Throws one Error that names every field that makes no sense, with its value and what is allowed.
void validate(const SamplingParams& params);

}  // namespace larder
