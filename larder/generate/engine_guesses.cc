// Guesses of an engine's samples: made behind their newest token, in the tokens that a step has
// left.
#include <algorithm>

#include "larder/generate/engine_sample.h"

namespace larder {

Engine::Guesses::Guesses(const PromptLookupParams& params, int64_t most) : lookup_(params) {
  const auto tokens = static_cast<size_t>(std::min(lookup_.max_tokens(), most));
  draft_.tokens.reserve(tokens);
  chosen_.reserve(tokens + 1);
}

void Engine::Guesses::propose(std::span<const int32_t> ids, int64_t most) {
  draft_.ids = ids;
  draft_.most = most;
  draft_.tokens.clear();
  lookup_.propose({&draft_, 1});
}

void Engine::Guesses::choose(RowOutput& output, std::span<float> logits) noexcept {
  error_ = nullptr;
  try {
    output.choose_behind(logits, draft_.tokens, chosen_);
  } catch (...) {
    error_ = std::current_exception();
  }
}

// A step with guesses is settled after its logits, in all rows: none of them may have to settle
// before, as a quantized one that is due does.
bool Engine::can_guess(std::span<const Scheduler::Share> shares) const {
  const auto fits = [this](const Scheduler::Share& share) {
    const Sample& sample = *const_cast<Engine*>(this)->find(share.id);
    return share.count <= session_.cache().tentative_limit(sample.slot);
  };
  return std::ranges::all_of(shares, fits);
}

// At most `most`.
std::span<const int32_t> Engine::guess_behind(Sample& sample, int64_t most) {
  if (!sample.guesses || sample.output.new_tokens() == 0) return {};
  if (sample.fed + 1 < sample.output.length()) return {};  // it is being computed again
  const int64_t limit = session_.cache().tentative_limit(sample.slot);
  const int64_t left = sample.output.limit() - sample.output.new_tokens();
  sample.guesses->propose(sample.output.ids(), std::min({most, limit - 1, left - 1}));
  guessed_ = guessed_ || !sample.guesses->tokens().empty();
  return sample.guesses->tokens();
}

}  // namespace larder
