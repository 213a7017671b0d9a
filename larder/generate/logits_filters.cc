// The filters of sampling. Where the reference rounds to f32 before it compares, so does this: a
// probability that is meant to equal a threshold then does.
#include <algorithm>
#include <cmath>
#include <limits>

#include "larder/generate/logits_process.h"

namespace larder {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

// The candidates in order, sorted only as far as they are looked at: a filter that keeps 50 of
// 50,000 tokens must not pay for sorting them all.
template <class Before>
class LazyOrder {
 public:
  LazyOrder(std::span<Candidate> all, Before before) : all_(all), before_(before) {}

  size_t size() const { return all_.size(); }
  const Candidate& operator[](size_t i) {
    while (i >= sorted_) sort_more();
    return all_[i];
  }

 private:
  void sort_more() {
    const auto begin = all_.begin() + static_cast<ptrdiff_t>(sorted_);
    const size_t chunk = std::min(std::max<size_t>(128, 3 * sorted_), all_.size() - sorted_);
    const auto end = begin + static_cast<ptrdiff_t>(chunk);
    if (end != all_.end()) std::nth_element(begin, end, all_.end(), before_);
    std::sort(begin, end, before_);
    sorted_ += chunk;
  }

  std::span<Candidate> all_;
  Before before_;
  size_t sorted_ = 0;
};

// All tokens that are not removed, by their score.
std::span<Candidate> collect(std::span<const float> scores, SamplerScratch& scratch) {
  const auto out = scratch.candidates();
  size_t count = 0;
  for (size_t id = 0; id < scores.size(); ++id)
    if (scores[id] != kRemoved) out[count++] = {scores[id], static_cast<int32_t>(id)};
  return out.first(count);
}

// Those that top_p can keep. All tokens below (1 - top_p) / vocabulary together have less than
// 1 - top_p, so each of them goes; half of that leaves room for rounding.
std::span<Candidate> collect_for_top_p(std::span<const float> scores, double top_p, double total,
                                       SamplerScratch& scratch) {
  const auto weights = scratch.weights();
  const double least = 0.5 * (1 - top_p) * total / static_cast<double>(scores.size());
  const auto out = scratch.candidates();
  size_t count = 0;
  for (size_t id = 0; id < scores.size(); ++id)
    if (weights[id] >= least && scores[id] != kRemoved)
      out[count++] = {scores[id], static_cast<int32_t>(id)};
  return out.first(count);
}

bool best_first(const Candidate& a, const Candidate& b) {
  return a.key != b.key ? a.key > b.key : a.id < b.id;
}

// The reference sorts upwards, so what stands last among equals survives there.
bool best_and_later_first(const Candidate& a, const Candidate& b) {
  return a.key != b.key ? a.key > b.key : a.id > b.id;
}

bool lowest_first(const Candidate& a, const Candidate& b) {
  return a.key != b.key ? a.key < b.key : a.id < b.id;
}

float kth_largest(std::span<const float> scores, size_t k, SamplerScratch& scratch) {
  if (k <= 1) return largest(scores);
  const auto all = collect(scores, scratch);
  if (k > all.size()) return kRemoved;
  const auto kth = all.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(all.begin(), kth, all.end(), best_first);
  return kth->key;
}

template <class Order>
void keep_first(std::span<float> scores, Order& order, size_t count, SamplerScratch& scratch) {
  scratch.unmark_all();
  for (size_t i = 0; i < std::min(count, order.size()); ++i) scratch.mark(order[i].id);
  for (size_t id = 0; id < scores.size(); ++id)
    if (!scratch.marked(id)) scores[id] = kRemoved;
}

void cut_below(std::span<float> scores, float threshold, double total, SamplerScratch& scratch,
               size_t keep) {
  const float kth = kth_largest(scores, keep, scratch);
  const auto weights = scratch.weights();
  for (size_t id = 0; id < scores.size(); ++id)
    if (static_cast<float>(weights[id] / total) < threshold && scores[id] < kth)
      scores[id] = kRemoved;
}

double entropy(std::span<const float> scores, std::span<const double> weights, SoftmaxSum softmax) {
  const double log_total = std::log(softmax.total);
  double sum = 0;
  for (size_t id = 0; id < scores.size(); ++id) {
    if (scores[id] == kRemoved) continue;
    const double log_p = static_cast<double>(scores[id]) - softmax.max - log_total;
    sum -= log_p * (weights[id] / softmax.total);
  }
  return sum;
}

}  // namespace

SoftmaxSum softmax_weights(std::span<const float> scores, std::span<double> weights) {
  SoftmaxSum sum{largest(scores), 0};
  if (sum.max == kRemoved) return sum;
  for (size_t id = 0; id < scores.size(); ++id) {
    const bool removed = scores[id] == kRemoved;
    weights[id] = removed ? 0 : std::exp(static_cast<double>(scores[id]) - sum.max);
    sum.total += weights[id];
  }
  return sum;
}

void apply_top_k(std::span<float> scores, int64_t top_k, SamplerScratch& scratch, size_t keep) {
  const size_t k = std::max(static_cast<size_t>(std::max<int64_t>(top_k, 1)), keep);
  if (k >= scores.size()) return;
  const float kth = kth_largest(scores, k, scratch);
  for (float& score : scores)
    if (score < kth) score = kRemoved;
}

void apply_top_p(std::span<float> scores, double top_p, SamplerScratch& scratch, size_t keep) {
  const auto weights = scratch.weights();
  const SoftmaxSum softmax = softmax_weights(scores, weights);
  if (softmax.total == 0 || top_p >= 1) return;
  LazyOrder order(keep <= 1 ? collect_for_top_p(scores, top_p, softmax.total, scratch)
                            : collect(scores, scratch),
                  best_and_later_first);
  const auto limit = static_cast<float>(1.0 - top_p);
  double above = 0;
  size_t count = 0;
  for (; count < order.size(); ++count) {
    if (count >= keep && static_cast<float>(1.0 - above) <= limit) break;
    above += weights[static_cast<size_t>(order[count].id)] / softmax.total;
  }
  keep_first(scores, order, count, scratch);
}

void apply_min_p(std::span<float> scores, double min_p, SamplerScratch& scratch, size_t keep) {
  const auto weights = scratch.weights();
  const SoftmaxSum softmax = softmax_weights(scores, weights);
  if (softmax.total == 0) return;
  const float threshold = static_cast<float>(min_p) * static_cast<float>(1.0 / softmax.total);
  if (keep <= 1) return cut_below(scores, threshold, softmax.total, scratch, keep);
  LazyOrder order(collect(scores, scratch), best_first);
  size_t count = 0;
  for (; count < order.size(); ++count) {
    const double p = weights[static_cast<size_t>(order[count].id)] / softmax.total;
    if (count >= keep && static_cast<float>(p) < threshold) break;
  }
  keep_first(scores, order, count, scratch);
}

void apply_typical_p(std::span<float> scores, double typical_p, SamplerScratch& scratch,
                     size_t keep) {
  const auto weights = scratch.weights();
  const SoftmaxSum softmax = softmax_weights(scores, weights);
  if (softmax.total == 0) return;
  const auto mean = static_cast<float>(entropy(scores, weights, softmax));
  const double log_total = std::log(softmax.total);
  const auto all = collect(scores, scratch);
  for (Candidate& c : all) {
    const auto log_p = static_cast<float>(static_cast<double>(c.key) - softmax.max - log_total);
    c.key = std::fabs(-log_p - mean);
  }
  LazyOrder order(all, lowest_first);
  const auto probability = [&](size_t i) {
    return weights[static_cast<size_t>(order[i].id)] / softmax.total;
  };
  size_t last = 0;
  double sum = probability(0);
  while (static_cast<float>(sum) < static_cast<float>(typical_p) && last + 1 < order.size())
    sum += probability(++last);
  const float farthest = order[last].key;
  while (last + 1 < order.size() && order[last + 1].key == farthest) ++last;
  keep_first(scores, order, std::max(last + 1, keep), scratch);
}

void apply_epsilon_cutoff(std::span<float> scores, double epsilon, SamplerScratch& scratch,
                          size_t keep) {
  const SoftmaxSum softmax = softmax_weights(scores, scratch.weights());
  if (softmax.total == 0) return;
  cut_below(scores, static_cast<float>(epsilon), softmax.total, scratch, keep);
}

void apply_eta_cutoff(std::span<float> scores, double epsilon, SamplerScratch& scratch,
                      size_t keep) {
  const auto weights = scratch.weights();
  const SoftmaxSum softmax = softmax_weights(scores, weights);
  if (softmax.total == 0) return;
  const double eta =
      std::min(epsilon, std::sqrt(epsilon) * std::exp(-entropy(scores, weights, softmax)));
  cut_below(scores, static_cast<float>(eta), softmax.total, scratch, keep);
}

}  // namespace larder
