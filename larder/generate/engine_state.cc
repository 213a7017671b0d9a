// What an engine says of itself.
#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/shared_blocks.h"
#include "larder/generate/engine_sample.h"

namespace larder {

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
  if (prefix_cache_) stats.prefixes = prefix_cache_->stats();
  stats.num_blocks = pool_->num_blocks();
  stats.free_blocks = pool_->num_free();
  if (paged_pool_of(session_.cache()) == nullptr) return stats;
  stats.used_blocks = stats.num_blocks - stats.free_blocks;
  stats.cached_blocks = prefix_cache_ ? prefix_cache_->reclaimable() : 0;
  count_slots(stats);
  return stats;
}

void Engine::count_slots(EngineStats& stats) const {
  const Cache& cache = session_.cache();
  const PagedBlocks& pool = *paged_pool_of(cache);
  std::vector<int64_t> used(static_cast<size_t>(pool.num_blocks()), -1);  // -1: no row has it
  for (int32_t l = 0; l < cache.num_layers(); ++l) {
    for (int32_t row = 0; row < cache.batch(); ++row) {
      cache.layer(l).for_each_block_of(row, [&](const CacheLayer::RowBlock& of_row) {
        int64_t& most = used[static_cast<size_t>(pool.number_of(of_row.block))];
        if (most < 0) stats.slots += of_row.slots, stats.unused_slots += of_row.slots;
        stats.unused_slots -= std::max<int64_t>(of_row.used - std::max<int64_t>(most, 0), 0);
        most = std::max(most, of_row.used);
      });
    }
  }
}

// Allocates nothing, so that a debug build's steady steps do not either.
void Engine::check_invariants() const {
  size_t queued = 0;
  int32_t rows = 0;
  for (const auto& sample : samples_) {
    LARDER_ASSERT(sample->ended || sample->output.running() || sample->output.limit() == 0);
    LARDER_ASSERT(!sample->follows || (!sample->queued && sample->slot < 0));
    queued += sample->queued && !sample->ended ? 1 : 0;
    rows += sample->slot < 0 ? 0 : 1;
    LARDER_ASSERT((sample->slot < 0) == (sample->fed == 0));
    if (sample->slot < 0) continue;
    LARDER_ASSERT(!sample->ended && slots_.taken(sample->slot));
    LARDER_ASSERT(sample->fed < sample->output.length());
    LARDER_ASSERT(session_.cache().seq_len(sample->slot) == sample->fed);
  }
  for (int32_t slot = 0; slot < slots_.size(); ++slot) {
    rows -= slots_.taken(slot) ? 1 : 0;
    LARDER_ASSERT(slots_.taken(slot) || session_.cache().seq_len(slot) == 0);
  }
  LARDER_ASSERT(rows == 0);
  LARDER_ASSERT(scheduler_.running().size() + scheduler_.waiting().size() == queued);
  check_queues();
  LARDER_ASSERT(stats_.last_step_tokens <= scheduler_.options().max_tokens_per_step);
}

// The scheduler knows what the samples know, and no two have one row.
void Engine::check_queues() const {
  const auto sample_of = [this](const Scheduler::Entry& entry) {
    const Sample* const sample = const_cast<Engine*>(this)->find(entry.id);
    LARDER_ASSERT(sample != nullptr && entry.held == sample->fed);
    LARDER_ASSERT(entry.known == sample->output.length());
    return sample;
  };
  const auto running = scheduler_.running();
  LARDER_ASSERT(static_cast<int64_t>(running.size()) <= scheduler_.options().max_running);
  for (size_t i = 0; i < running.size(); ++i) {
    const int32_t slot = sample_of(running[i])->slot;
    for (size_t j = 0; j < i && slot >= 0; ++j) LARDER_ASSERT(sample_of(running[j])->slot != slot);
  }
  for (const Scheduler::Entry& entry : scheduler_.waiting())
    LARDER_ASSERT(sample_of(entry)->slot < 0);
}

}  // namespace larder
