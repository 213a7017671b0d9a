#include "larder/generate/engine_recorder.h"

#include <algorithm>

#include "larder/cache/shared_blocks.h"

namespace larder {

Engine::Recorder::Recorder(Engine& engine, PoolEvents& sink)
    : engine_(engine), sink_(sink), pool_(paged_pool_of(engine.session_.cache())) {
  const int64_t blocks = pool_ == nullptr ? 0 : pool_->num_blocks();
  lives_.resize(static_cast<size_t>(blocks));
  if (pool_ != nullptr) pool_->watch(this);
  on_event({.kind = PoolEventKind::kPool, .count = blocks});
}

Engine::Recorder::~Recorder() {
  if (pool_ != nullptr) pool_->watch(nullptr);
}

void Engine::Recorder::on_event(const PoolEvent& event) noexcept {
  if (event.kind == PoolEventKind::kFree) ++lives_[static_cast<size_t>(event.blocks.front())];
  PoolEvent stamped = event;
  stamped.step = engine_.stats_.steps + 1;
  sink_.on_event(stamped);
}

PoolEvent Engine::Recorder::of(PoolEventKind kind, const Sample& sample, int64_t count) const {
  return {.kind = kind, .count = count, .request = sample.request, .sample = sample.index()};
}

void Engine::Recorder::begun(const Sample& sample) {
  on_event(of(PoolEventKind::kBegin, sample, sample.output.length()));
}

void Engine::Recorder::read_row(const Sample& sample) {
  row_.clear();
  const Cache& cache = engine_.session_.cache();
  for (int32_t l = 0; pool_ != nullptr && l < cache.num_layers(); ++l) {
    cache.layer(l).for_each_block_of(sample.slot, [&](const CacheLayer::RowBlock& of_row) {
      const int32_t number = pool_->number_of(of_row.block);
      row_.push_back({number, lives_[static_cast<size_t>(number)]});
    });
  }
  std::ranges::sort(row_);
}

// Blocks of `from` that are not in `without`.
void Engine::Recorder::tell_difference(PoolEvent event, const List& from, const List& without) {
  numbers_.clear();
  for (const Held& held : from)
    if (alive(held) && !std::ranges::binary_search(without, held)) numbers_.push_back(held.number);
  if (numbers_.empty() && event.kind != PoolEventKind::kHit) return;
  event.blocks = numbers_;
  on_event(event);
}

void Engine::Recorder::tell_row(PoolEventKind kind, const Sample& sample, int64_t tokens) {
  read_row(sample);
  tell_difference(of(kind, sample, tokens), row_, {});
  told_[sample.id] = row_;
}

void Engine::Recorder::gives_back(PoolEventKind kind, const Sample& sample,
                                  std::string_view reason) {
  told_.erase(sample.id);
  PoolEvent event = of(kind, sample);
  event.text = reason;
  on_event(event);
}

void Engine::Recorder::end_step() {
  for (const auto& sample : engine_.samples_) {
    if (sample->ended || sample->slot < 0) continue;
    read_row(*sample);
    List& told = told_[sample->id];
    tell_difference(of(PoolEventKind::kRelease, *sample), told, row_);
    tell_difference(of(PoolEventKind::kOwn, *sample), row_, told);
    told = row_;
  }
  sink_.on_event({.kind = PoolEventKind::kStep,
                  .count = engine_.stats_.last_step_tokens,
                  .step = engine_.stats_.steps});
}

}  // namespace larder
