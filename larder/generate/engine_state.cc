// What an engine says of itself.
#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/engine_sample.h"

namespace larder {

std::unique_ptr<PoolView> pool_of(const Cache& /*cache*/) {
  return std::make_unique<UnboundedPool>();
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  const auto count = [](std::span<const Scheduler::Entry> entries, Scheduler::State state) {
    return static_cast<int64_t>(std::ranges::count(entries, state, &Scheduler::Entry::state));
  };
  stats.waiting = std::ranges::count_if(samples_, [](const auto& s) { return s->follows; }) +
                  count(scheduler_.waiting(), Scheduler::State::kWaiting);
  stats.preempted = count(scheduler_.waiting(), Scheduler::State::kPreempted);
  stats.in_prompt = count(scheduler_.running(), Scheduler::State::kPrefill);
  stats.decoding = count(scheduler_.running(), Scheduler::State::kDecode);
  stats.num_blocks = pool_->num_blocks();
  stats.free_blocks = pool_->num_free();
  return stats;
}

void Engine::check_invariants() const {
  const Cache& cache = session_.cache();
  std::vector<const Sample*> owner(static_cast<size_t>(slots_.size()));
  size_t queued = 0;
  for (const auto& sample : samples_) {
    LARDER_ASSERT(sample->ended || sample->output.running() || sample->output.limit() == 0);
    queued += sample->queued && !sample->ended ? 1 : 0;
    LARDER_ASSERT(!sample->follows || (!sample->queued && sample->slot < 0));
    if (sample->slot < 0) {
      LARDER_ASSERT(sample->fed == 0);
      continue;
    }
    const Sample*& owned = owner[static_cast<size_t>(sample->slot)];
    LARDER_ASSERT(slots_.taken(sample->slot) && owned == nullptr && !sample->ended);
    LARDER_ASSERT(sample->fed > 0 && sample->fed < sample->output.length());
    LARDER_ASSERT(cache.seq_len(sample->slot) == sample->fed);
    owned = sample.get();
  }
  for (int32_t slot = 0; slot < slots_.size(); ++slot) {
    LARDER_ASSERT(slots_.taken(slot) == (owner[static_cast<size_t>(slot)] != nullptr));
    LARDER_ASSERT(slots_.taken(slot) || cache.seq_len(slot) == 0);
  }
  const auto running = scheduler_.running(), waiting = scheduler_.waiting();
  LARDER_ASSERT(running.size() + waiting.size() == queued);
  LARDER_ASSERT(static_cast<int64_t>(running.size()) <= scheduler_.options().max_running);
  for (const auto& [entries, has_row] : {std::pair{running, true}, {waiting, false}}) {
    for (const Scheduler::Entry& entry : entries) {
      const Sample* const sample = const_cast<Engine*>(this)->find(entry.id);
      LARDER_ASSERT(sample != nullptr && entry.held == sample->fed);
      LARDER_ASSERT(entry.known == sample->output.length());
      LARDER_ASSERT(has_row || sample->slot < 0);
    }
  }
  LARDER_ASSERT(stats_.last_step_tokens <= scheduler_.options().max_tokens_per_step);
}

}  // namespace larder
