// What an engine does with the logits of a step: tokens are chosen, shown, and samples begin with
// copies of others.
#include <algorithm>
#include <exception>
#include <utility>

#include "larder/base/error.h"
#include "larder/generate/engine_recorder.h"

namespace larder {
namespace {

std::span<float> logits_of(const StepPlan& plan, int32_t b, const TensorView& logits) {
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  const auto first = static_cast<size_t>(plan.logit_start(b));
  const auto count = static_cast<size_t>(plan.logit_start(b + 1)) - first;
  return {logits.as<float>() + first * vocab, count * vocab};
}

}  // namespace

void Engine::deliver(const TensorView& logits) {
  const Step step = plan_.step(guessed_);
  if (guessed_) settle_guesses(step, logits);
  for (int32_t b = 0; b < step.batch; ++b) {
    Sample& sample = *planned_[static_cast<size_t>(b)];
    const int64_t known = step.q_len(b) - std::ssize(sample.guessed());
    sample.fed += known;
    scheduler_.fed(sample.id, known);
    if (prefix_cache_) record_blocks(sample);
  }
  for (int32_t b = 0; b < step.batch; ++b) {
    Sample& sample = *planned_[static_cast<size_t>(b)];
    const std::span<float> scores = logits_of(plan_, b, logits);
    if (scores.empty() || sample.ended) continue;
    if (!sample.guessed().empty())
      take_chosen(sample);
    else if (sample.leads)
      take_first_tokens(sample, scores);
    else
      take_next(sample, scores);
  }
}

// Before anybody hears of a token: rows keep the guesses that stand, and no other.
void Engine::settle_guesses(const Step& step, const TensorView& logits) {
  kept_.clear();
  for (int32_t b = 0; b < step.batch; ++b) {
    Sample& sample = *planned_[static_cast<size_t>(b)];
    kept_.push_back(step.q_len(b));
    if (sample.guessed().empty()) continue;
    sample.guesses->choose(sample.output, logits_of(plan_, b, logits));
    kept_.back() = sample.guesses->fed();
    stats_.guessed += std::ssize(sample.guessed());
    stats_.accepted += sample.guesses->fed() - 1;
  }
  session_.cache().accept(step, kept_);
}

void Engine::take_chosen(Sample& sample) {
  const std::span<const int32_t> chosen = sample.guesses->chosen();
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (i > 0) {
      ++sample.fed;
      scheduler_.fed(sample.id, 1);
    }
    if (!take_token(sample, chosen[i])) return;
  }
  try {
    sample.guesses->rethrow();
  } catch (const std::exception& error) {
    fail_sample(sample, error.what());
  }
}

void Engine::take_next(Sample& sample, std::span<float> logits) {
  try {
    const int32_t token = sample.output.choose(logits);
    take_token(sample, token);
  } catch (const std::exception& error) {
    fail_sample(sample, error.what());
  }
}

// False when the sample has ended with it.
bool Engine::take_token(Sample& sample, int32_t token) {
  ++stats_.new_tokens;
  try {
    sample.output.take(token,
                       [&](int32_t id, std::string_view text) { return show(sample, id, text); });
  } catch (const std::exception& error) {
    fail_sample(sample, error.what());
    return false;
  } catch (...) {
    fail_sample(sample, "a callback threw something that is no std::exception");
    return false;
  }
  if (!sample.output.running()) {
    end(sample);
    return false;
  }
  scheduler_.grew(sample.id);
  return true;
}

// The prompt is through: the other samples of the request begin with it.
void Engine::take_first_tokens(Sample& leader, std::span<float> logits) {
  prompt_logits_.assign(logits.begin(), logits.end());
  const std::vector<Sample*> begun = fork(leader);
  take_next(leader, logits);
  for (Sample* const sample : begun) {
    if (sample->ended) continue;
    std::ranges::copy(prompt_logits_, logits.begin());
    take_next(*sample, logits);
  }
}

// Gives followers copies of the leader's row, as many as there are rows for. The first of the rest
// leads them: it computes the prompt again.
std::vector<Engine::Sample*> Engine::fork(Sample& leader) {
  std::vector<Sample*> begun = followers_of(leader);
  const auto most = static_cast<size_t>(scheduler_.rows_left(leader.id));
  begun.resize(std::min(begun.size(), most));
  try {
    const std::vector<int32_t> copies =
        slots_.copies_of(leader.slot, static_cast<int32_t>(begun.size()));
    for (size_t i = 0; i < begun.size(); ++i) begun[i]->slot = copies[i];
  } catch (const Error& error) {
    if (!is_no_room(error)) throw;
    begun.clear();
  }
  for (Sample* const sample : begun) {
    sample->fed = leader.fed;
    sample->follows = false;
    sample->queued = true;
    scheduler_.fork(leader.id, sample->id);
    if (recorder_) recorder_->tell_row(PoolEventKind::kShare, *sample, sample->fed);
  }
  scheduler_.release_rows(leader.id);
  stop_leading(leader);
  return begun;
}

std::vector<Engine::Sample*> Engine::followers_of(const Sample& leader) {
  std::vector<Sample*> followers;
  for (int64_t id = leader.id + 1; id < leader.request + leader.asked->num_samples; ++id)
    if (Sample* const sample = find(id); sample && sample->follows) followers.push_back(sample);
  return followers;
}

void Engine::stop_leading(Sample& leader) {
  leader.leads = false;
  const std::vector<Sample*> left = followers_of(leader);
  if (left.empty()) return;
  left.front()->follows = false;
  enqueue(*left.front(), static_cast<int32_t>(left.size()));
}

}  // namespace larder
