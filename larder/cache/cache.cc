#include "larder/cache/cache.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {

void Cache::begin(const Step& step) {
  size_t ready = 0;
  try {
    for (; ready < layers_.size(); ++ready) layers_[ready]->reserve(step);
  } catch (...) {
    for (size_t i = 0; i < ready; ++i) layers_[i]->cancel(step);
    throw;
  }
}

void Cache::accept(const Step& step, std::span<const int32_t> count) {
  LARDER_ASSERT(step.tentative && count.size() == static_cast<size_t>(step.batch));
  for (const auto& layer : layers_) layer->accept(step, count);
}

void Cache::cancel(const Step& step) noexcept {
  for (const auto& layer : layers_) layer->cancel(step);
}

int64_t Cache::seq_len(int32_t row) const { return layers_.empty() ? 0 : layers_[0]->seq_len(row); }

int64_t Cache::max_len() const {
  int64_t least = -1;
  for (const auto& layer : layers_) {
    const int64_t len = layer->max_len();
    if (len >= 0) least = least < 0 ? len : std::min(least, len);
  }
  return least;
}

// All layers prepare before the first one changes, so an error on the way leaves every layer as it
// was.
void Cache::apply_to_all(const auto& prepare) {
  std::vector<std::unique_ptr<Change>> changes;
  changes.reserve(layers_.size());
  for (const auto& layer : layers_) changes.push_back(prepare(*layer));
  for (const auto& change : changes) change->apply();
}

void Cache::select_rows(std::span<const int32_t> source) {
  apply_to_all([&](CacheLayer& layer) { return layer.select_rows(source); });
}

void Cache::crop(std::span<const int64_t> len) {
  if (len.size() != static_cast<size_t>(batch())) {
    fail("crop of ", len.size(), " rows on a cache of ", batch(), " rows");
  }
  apply_to_all([&](CacheLayer& layer) { return layer.crop(len); });
}

void Cache::reset() noexcept {
  for (const auto& layer : layers_) layer->reset();
}

}  // namespace larder
