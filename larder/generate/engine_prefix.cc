// How an engine uses a prefix cache.
#include <algorithm>

#include "larder/generate/engine_recorder.h"

namespace larder {
namespace {

size_t common_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

class Engine::Prefixes final : public PrefixView {
 public:
  explicit Prefixes(Engine& engine) : engine_(engine) {}

  std::optional<int64_t> cached_tokens(int64_t id) override {
    const Sample& sample = *engine_.find(id);
    const int64_t cached = engine_.prefix_cache_->match(sample.output.ids(), sample.asked->salt);
    if (somebody_computes(sample, cached + engine_.prefix_cache_->block_size())) return {};
    return cached;
  }

  int64_t begin(int64_t id) override {
    Sample& sample = *engine_.find(id);
    engine_.take_row(sample);
    engine_.prefix_cache_->adopt(sample.slot, sample.output.ids(), sample.chain);
    sample.fed = sample.chain.blocks * engine_.prefix_cache_->block_size();
    if (sample.fed > 0 && engine_.recorder_)
      engine_.recorder_->began_with(PoolEventKind::kHit, sample, sample.fed);
    return sample.fed;
  }

 private:
  // Whether one that runs is about to have the first `tokens` of what the sample needs.
  bool somebody_computes(const Sample& sample, int64_t tokens) const {
    const std::vector<int32_t>& ids = sample.output.ids();
    if (tokens >= static_cast<int64_t>(ids.size())) return false;
    return std::ranges::any_of(engine_.scheduler_.running(), [&](const Scheduler::Entry& entry) {
      if (entry.held >= tokens || entry.known < tokens) return false;
      const Sample& other = *engine_.find(entry.id);
      return other.asked->salt == sample.asked->salt &&
             static_cast<int64_t>(common_tokens(ids, other.output.ids())) >= tokens;
    });
  }

  Engine& engine_;
};

std::unique_ptr<PrefixView> Engine::prefix_view() {
  return prefix_cache_ ? std::make_unique<Prefixes>(*this) : nullptr;
}

void Engine::take_row(Sample& sample) {
  sample.slot = slots_.take();
  if (prefix_cache_) sample.chain = prefix_cache_->begin(sample.asked->salt);
}

void Engine::record_blocks(Sample& sample) {
  const std::span<const int32_t> ids = sample.output.ids();
  prefix_cache_->record(sample.slot, ids.first(static_cast<size_t>(sample.fed)), sample.chain);
}

}  // namespace larder
