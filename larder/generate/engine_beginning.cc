// What an engine need not compute: cached prefixes, and rows that stood aside.
#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/engine_recorder.h"

namespace larder {
namespace {

size_t common_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

class Engine::Beginnings final : public BeginningView {
 public:
  explicit Beginnings(Engine& engine) : engine_(engine) {}

  std::optional<Beginning> beginning(int64_t id) override {
    const Sample& sample = *engine_.find(id);
    if (!sample.aside.empty()) return Beginning{sample.aside.len, false};
    PrefixCache* const prefixes = engine_.prefix_cache_.get();
    if (prefixes == nullptr) return Beginning{};
    const int64_t cached = prefixes->match(sample.output.ids(), sample.asked->salt);
    if (somebody_computes(sample, cached + prefixes->block_size())) return {};
    return Beginning{cached};
  }

  int64_t begin(int64_t id) override {
    Sample& sample = *engine_.find(id);
    engine_.take_row(sample);
    if (!engine_.take_in(sample) && engine_.prefix_cache_) {
      engine_.prefix_cache_->adopt(sample.slot, sample.output.ids(), sample.chain);
      sample.fed = sample.chain.blocks * engine_.prefix_cache_->block_size();
      if (sample.fed > 0 && engine_.recorder_)
        engine_.recorder_->tell_row(PoolEventKind::kHit, sample, sample.fed);
    }
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

std::unique_ptr<BeginningView> Engine::beginning_view() {
  if (!prefix_cache_ && !swap_) return nullptr;
  return std::make_unique<Beginnings>(*this);
}

void Engine::take_row(Sample& sample) {
  sample.slot = slots_.take();
  if (prefix_cache_) sample.chain = prefix_cache_->begin(sample.asked->salt);
}

void Engine::record_blocks(Sample& sample) {
  const std::span<const int32_t> ids = sample.output.ids();
  prefix_cache_->record(sample.slot, ids.first(static_cast<size_t>(sample.fed)), sample.chain);
}

// A file that cannot be written costs a computation, and no token.
void Engine::put_aside(Sample& sample) {
  if (!swap_ || sample.fed == 0) return;
  try {
    sample.aside = swap_->put(sample.slot);
    ++stats_.swapped_out;
    if (recorder_) recorder_->tell_row(PoolEventKind::kSwapOut, sample, sample.fed);
  } catch (const Error&) {
  }
}

// False where nothing stood aside, or it could not come back.
bool Engine::take_in(Sample& sample) {
  if (sample.aside.empty()) return false;
  bool done = true;
  try {
    swap_->get(sample.slot, sample.aside);
    sample.fed = sample.aside.len;
    ++stats_.swapped_in;
    if (recorder_) recorder_->tell_row(PoolEventKind::kSwapIn, sample, sample.fed);
  } catch (const Error&) {
    done = false;
  }
  swap_->drop(sample.aside);
  return done;
}

}  // namespace larder
