#include "larder/generate/beam_scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "larder/base/error.h"

namespace larder {

EarlyStopping parse_early_stopping(std::string_view what, std::string_view text) {
  if (text == "false") return EarlyStopping::kFalse;
  if (text == "true") return EarlyStopping::kTrue;
  if (text == "never") return EarlyStopping::kNever;
  fail(what, " is ", in_quotes(text), ", must be true, false or never");
}

void validate(const BeamParams& p) {
  std::vector<std::string> problems;
  if (p.num_beams < 1)
    problems.push_back(str("num_beams is ", p.num_beams, ", must be 1 or above"));
  if (!std::isfinite(p.length_penalty))
    problems.push_back(str("length_penalty is ", p.length_penalty, ", must be a finite number"));
  if (p.num_return_sequences < 1)
    problems.push_back(
        str("num_return_sequences is ", p.num_return_sequences, ", must be 1 or above"));
  if (p.num_return_sequences > std::max<int64_t>(p.num_beams, 1))
    problems.push_back(str("num_return_sequences is ", p.num_return_sequences,
                           ", must be at most num_beams, which is ", p.num_beams));
  if (!problems.empty()) fail("beam search: ", join(problems, "; "));
}

BeamScorer::BeamScorer(const BeamParams& params, size_t vocab_size, std::span<const int32_t> prompt,
                       std::vector<int32_t> eos_ids, int64_t max_new_tokens)
    : params_(params),
      vocab_size_(vocab_size),
      prompt_size_(prompt.size()),
      eos_ids_(std::move(eos_ids)),
      max_new_tokens_(max_new_tokens) {
  validate(params_);
  LARDER_ASSERT(max_new_tokens >= 1);
  const auto num_beams = static_cast<size_t>(params_.num_beams);
  if (num_beams > vocab_size)
    fail("num_beams is ", num_beams, ", must be at most the vocabulary's ", vocab_size, " ids");
  most_candidates_ = std::max<size_t>(2, 1 + eos_ids_.size()) * num_beams;
  candidates_.reserve(most_candidates_);
  beams_.resize(num_beams);
  next_.resize(num_beams);
  beams_[0].ids.assign(prompt.begin(), prompt.end());
}

bool BeamScorer::better(const Candidate& a, const Candidate& b) {
  if (a.sum != b.sum) return a.sum > b.sum;
  return a.beam != b.beam ? a.beam < b.beam : a.id < b.id;
}

void BeamScorer::consider(size_t beam, std::span<const float> log_probs) {
  LARDER_ASSERT(beam < live_ && log_probs.size() == vocab_size_);
  if (beam == 0) candidates_.clear();
  considered_ = beam + 1;
  const double sum = beams_[beam].sum;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const auto worst = [&] {
    return candidates_.size() < most_candidates_ ? kNone : candidates_.front().sum;
  };
  double least = worst();
  for (size_t id = 0; id < log_probs.size(); ++id) {
    const double total = sum + double{log_probs[id]};
    if (!(total > least)) continue;  // of equals the earlier one stays
    if (candidates_.size() == most_candidates_) {
      std::pop_heap(candidates_.begin(), candidates_.end(), better);
      candidates_.pop_back();
    }
    candidates_.push_back({total, static_cast<int32_t>(beam), static_cast<int32_t>(id)});
    std::push_heap(candidates_.begin(), candidates_.end(), better);
    least = worst();
  }
}

void BeamScorer::advance() {
  std::sort(candidates_.begin(), candidates_.end(), better);
  ++new_tokens_;
  const size_t num_beams = beams_.size();
  size_t kept = 0;
  for (size_t rank = 0; rank < candidates_.size(); ++rank) {
    const Candidate& candidate = candidates_[rank];
    const std::vector<int32_t>& ids = beams_[static_cast<size_t>(candidate.beam)].ids;
    const bool ends = new_tokens_ == max_new_tokens_ ||
                      std::ranges::find(eos_ids_, candidate.id) != eos_ids_.end();
    if (ends) {
      if (rank < num_beams) end(ids, candidate.id, candidate.sum);
    } else if (kept < num_beams) {
      Beam& beam = next_[kept++];
      beam.ids.assign(ids.begin(), ids.end());
      beam.ids.push_back(candidate.id);
      beam.sum = candidate.sum;
      beam.source = candidate.beam;
    }
  }
  std::swap(beams_, next_);
  live_ = kept;
  candidates_.clear();
  if (live_ > 0 && !can_improve()) live_ = 0;
}

// Keeps the best num_beams of what has ended; of equals those that ended first.
void BeamScorer::end(std::span<const int32_t> ids, int32_t last, double sum) {
  const double score = score_of(sum, new_tokens_);
  const auto at = std::ranges::find_if(ended_, [&](const auto& e) { return score > e.score; });
  if (at == ended_.end() && ended_.size() == beams_.size()) return;
  const auto fresh = ids.subspan(prompt_size_);
  Sequence sequence{{fresh.begin(), fresh.end()}, score};
  sequence.ids.push_back(last);
  ended_.insert(at, std::move(sequence));
  if (ended_.size() > beams_.size()) ended_.pop_back();
}

// A number to a power of 0 is 1, so that length_penalty 0 compares sums.
double BeamScorer::score_of(double sum, int64_t length) const {
  return sum / std::pow(static_cast<double>(length), params_.length_penalty);
}

bool BeamScorer::can_improve() const {
  if (ended_.size() < beams_.size()) return true;
  if (params_.early_stopping == EarlyStopping::kTrue) return false;
  // Sums only fall, so with a positive exponent a beam is at its best when it is longest.
  const bool hopes = params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0;
  return score_of(beams_[0].sum, hopes ? max_new_tokens_ : new_tokens_) > ended_.back().score;
}

void BeamScorer::stop() {
  for (size_t b = 0; b < live_ && new_tokens_ > 0; ++b) {
    const std::span<const int32_t> ids = beams_[b].ids;
    end(ids.first(ids.size() - 1), ids.back(), beams_[b].sum);
  }
  live_ = 0;
}

std::vector<BeamScorer::Sequence> BeamScorer::best() const {
  const size_t count = std::min(ended_.size(), static_cast<size_t>(params_.num_return_sequences));
  return {ended_.begin(), ended_.begin() + static_cast<ptrdiff_t>(count)};
}

}  // namespace larder
