// Next-token distributions of several sessions fed with one text, beside those of a first one: what
// measures of quality are made of.
#pragma once

#include <memory>
#include <vector>

#include "larder/generate/kv_quality.h"

namespace larder {

// One session with what it has shown so far.
struct Contender {
  Contender(const std::shared_ptr<const Model>& model, const SessionOptions& options,
            Allocator& allocator)
      : memory(allocator), session(model, options, memory) {}
  TrackingAllocator memory;
  Session session;
  double sum_kl = 0, max_kl = 0, sum_nll = 0;
  int64_t same_top = 0;
};

// Throws Error where the model, the text or the steps make no sense.
void check_race(const Model& model, std::span<const int32_t> ids, const QualitySteps& steps);

// The exact session and the others, fed with the same text in the same steps.
class QualityRace {
 public:
  // Needs: check_race() passed; ids and steps outlive the race.
  QualityRace(std::span<const int32_t> ids, const QualitySteps& steps,
              std::unique_ptr<Contender> exact);
  ~QualityRace();

  void add(std::unique_ptr<Contender> other) { others_.push_back(std::move(other)); }
  // The exact session's last `tokens` tokens and more, to the next step's beginning, run with these
  // kernels.
  void watch(const Kernels& kernels, int64_t tokens) {
    watched_ = &kernels;
    watched_tokens_ = tokens;
  }
  // False when interrupted.
  bool run();
  Contender& exact() { return *exact_; }
  const Contender& other(size_t index) const { return *others_[index]; }
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  // In nats, over all tokens and of the worst one, and so on.
  Divergence divergence(const Contender& contender) const;

 private:
  class Comparison;
  void feed(int64_t at, int64_t n);
  const float* forward(Contender& contender, const Kernels* kernels = nullptr) const;

  std::span<const int32_t> ids_;
  const QualitySteps& steps_;
  int64_t vocab_;
  std::unique_ptr<Contender> exact_;
  std::unique_ptr<Comparison> comparison_;
  std::vector<std::unique_ptr<Contender>> others_;
  std::vector<int64_t> position_;  // of the step
  std::vector<int32_t> rows_;
  const Kernels* watched_ = nullptr;
  int64_t watched_tokens_ = 0;
};

}  // namespace larder
