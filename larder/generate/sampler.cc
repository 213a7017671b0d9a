#include "larder/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "larder/base/error.h"
#include "larder/generate/philox.h"

namespace larder {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void check_words(const SamplingParams& params, size_t vocab_size) {
  for (size_t word = 0; word < params.bad_words_ids.size(); ++word)
    for (const int32_t id : params.bad_words_ids[word])
      if (static_cast<size_t>(id) >= vocab_size)
        fail("bad_words_ids[", word, "] holds id ", id, ", but the vocabulary has ", vocab_size,
             " ids; give ids below ", vocab_size);
}

// No test but this one sees a NaN: every later comparison with it would just be false.
void check_logits(std::span<const float> logits, size_t vocab_size) {
  if (logits.size() != vocab_size)
    fail("got ", logits.size(), " logits for a vocabulary of ", vocab_size, " ids");
  bool good = true;
  for (const float logit : logits) good &= logit < kInfinity;
  if (good) return;
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
  fail("the logit of id ", bad - logits.begin(), " is ", std::isnan(*bad) ? "NaN" : "infinite",
       "; the weights are damaged or overflow in this dtype (try --dtype f32)");
}

float checked_largest(std::span<const float> logits, const char* complaint) {
  const float max = largest(logits);
  if (max == -kInfinity) fail(complaint);
  if (max == kInfinity)
    fail("a logit is infinite after repetition_penalty; use a repetition_penalty nearer to 1");
  return max;
}

}  // namespace

Sampler::Sampler(SamplingParams params, SamplerRow row, SamplerScratch& scratch)
    : params_(std::move(params)), row_(std::move(row)), scratch_(&scratch) {
  validate(params_);
  if (row_.vocab_size == 0) fail("vocab_size is 0, must be at least 1");
  if (scratch.vocab_size() != row_.vocab_size)
    fail("the sampler's scratch is for ", scratch.vocab_size(), " ids, the vocabulary has ",
         row_.vocab_size);
  check_words(params_, row_.vocab_size);
  greedy_ = !params_.do_sample || static_cast<float>(params_.temperature) == 0;
}

int32_t Sampler::next(std::span<float> logits, std::span<const int32_t> ids_so_far) const {
  check_logits(logits, row_.vocab_size);
  checked_largest(logits, "every logit is -inf, so there is no token to choose");
  forbid(logits, ids_so_far);
  const float max = checked_largest(
      logits,
      "no_repeat_ngram_size, bad_words_ids, min_length and min_new_tokens together forbid "
      "every token; relax one of them");
  if (greedy_) {
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());
  }
  // With the maximum at 0, a tiny temperature sends the rest to -inf and nothing to NaN.
  for (float& logit : logits) logit -= max;
  filter(logits);
  return draw(logits, ids_so_far.size());
}

void Sampler::to_log_probs(std::span<float> logits, std::span<const int32_t> ids_so_far) const {
  check_logits(logits, row_.vocab_size);
  checked_largest(logits, "every logit is -inf, so there is no token to choose");
  const SoftmaxSum sum = softmax_weights(logits, scratch_->weights());
  const auto log_total = static_cast<float>(std::log(sum.total));
  for (float& logit : logits) logit = logit - sum.max - log_total;
  forbid(logits, ids_so_far);
}

void Sampler::forbid(std::span<float> logits, std::span<const int32_t> ids) const {
  if (params_.repetition_penalty != 1)
    apply_repetition_penalty(logits, ids, params_.repetition_penalty, *scratch_);
  apply_no_repeat_ngram(logits, ids, params_.no_repeat_ngram_size);
  apply_bad_words(logits, ids, params_.bad_words_ids, row_.eos_ids);
  const auto length = static_cast<int64_t>(ids.size());
  apply_min_length(logits, length + static_cast<int64_t>(row_.left_padding), params_.min_length,
                   row_.eos_ids);
  apply_min_new_tokens(logits, length - static_cast<int64_t>(row_.prompt_length),
                       params_.min_new_tokens, row_.eos_ids);
}

void Sampler::filter(std::span<float> logits) const {
  if (params_.temperature != 1) apply_temperature(logits, params_.temperature);
  if (params_.top_k > 0) apply_top_k(logits, params_.top_k, *scratch_);
  if (params_.top_p < 1) apply_top_p(logits, params_.top_p, *scratch_);
  if (params_.min_p > 0) apply_min_p(logits, params_.min_p, *scratch_);
  if (params_.typical_p < 1) apply_typical_p(logits, params_.typical_p, *scratch_);
  if (params_.epsilon_cutoff > 0) apply_epsilon_cutoff(logits, params_.epsilon_cutoff, *scratch_);
  if (params_.eta_cutoff > 0) apply_eta_cutoff(logits, params_.eta_cutoff, *scratch_);
}

int32_t Sampler::draw(std::span<const float> logits, uint64_t position) const {
  const auto weights = scratch_->weights();
  const double target = uniform_at(params_.seed, position) * softmax_weights(logits, weights).total;
  double sum = 0;
  size_t last = 0;
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0) continue;
    last = id;
    sum += weights[id];
    if (sum > target) break;
  }
  return static_cast<int32_t>(last);
}

}  // namespace larder
