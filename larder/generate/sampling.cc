#include "larder/generate/sampling.h"

#include <limits>
#include <string>
#include <string_view>

#include "larder/base/error.h"

namespace larder {
namespace {

constexpr double kLargest = std::numeric_limits<float>::max();
constexpr double kSmallest = std::numeric_limits<float>::min();

// Collects complaints, so that a user mends all of them in one go.
class Complaints {
 public:
  template <class Value>
  void unless(bool good, std::string_view name, Value value, std::string_view allowed) {
    if (!good) lines_.push_back(str(name, " is ", value, ", must be ", allowed));
  }
  void add(std::string line) { lines_.push_back(std::move(line)); }
  void raise() const {
    if (!lines_.empty()) fail("sampling settings: ", join(lines_, "; "));
  }

 private:
  std::vector<std::string> lines_;
};

// Comparisons are written so that a NaN fails them.
void check_filters(const SamplingParams& p, Complaints& out) {
  out.unless(p.temperature >= 0 && p.temperature <= kLargest, "temperature", p.temperature,
             "0 (greedy) or a finite number above 0");
  out.unless(p.top_k >= 0, "top_k", p.top_k, "0 (off) or above");
  out.unless(p.top_p >= 0 && p.top_p <= 1, "top_p", p.top_p, "in 0..1 (1 is off)");
  out.unless(p.min_p >= 0 && p.min_p <= 1, "min_p", p.min_p, "in 0..1 (0 is off)");
  out.unless(p.typical_p > 0 && p.typical_p <= 1, "typical_p", p.typical_p,
             "above 0 and at most 1 (1 is off)");
  out.unless(p.epsilon_cutoff >= 0 && p.epsilon_cutoff < 1, "epsilon_cutoff", p.epsilon_cutoff,
             "0 (off) or below 1");
  out.unless(p.eta_cutoff >= 0 && p.eta_cutoff < 1, "eta_cutoff", p.eta_cutoff,
             "0 (off) or below 1");
}

void check_bad_words(const SamplingParams& p, Complaints& out) {
  for (size_t word = 0; word < p.bad_words_ids.size(); ++word) {
    const auto& ids = p.bad_words_ids[word];
    if (ids.empty()) out.add(str("bad_words_ids[", word, "] is empty, must hold at least one id"));
    for (const int32_t id : ids)
      out.unless(id >= 0, str("an id of bad_words_ids[", word, "]"), id, "0 or above");
  }
}

}  // namespace

void validate(const SamplingParams& p) {
  Complaints out;
  check_filters(p, out);
  out.unless(p.repetition_penalty >= kSmallest && p.repetition_penalty <= kLargest,
             "repetition_penalty", p.repetition_penalty, "a finite number above 0 (1 is off)");
  out.unless(p.no_repeat_ngram_size >= 0, "no_repeat_ngram_size", p.no_repeat_ngram_size,
             "0 (off) or above");
  check_bad_words(p, out);
  out.unless(p.min_new_tokens >= 0, "min_new_tokens", p.min_new_tokens, "0 (off) or above");
  out.unless(p.min_length >= 0, "min_length", p.min_length, "0 (off) or above");
  out.raise();
}

}  // namespace larder
