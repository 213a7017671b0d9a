#include "larder/cache/cache.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {

std::unique_ptr<Change> KVLayer::adopt(int32_t /*row*/, int64_t /*first_block*/,
                                       std::span<const BlockPtr> /*blocks*/, int64_t /*len*/) {
  fail_as(ErrorKind::kUnsupported, "a ", format(), " layer shares no single blocks");
}

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

KVLayer& Cache::kv(int32_t index) {
  KVLayer* layer = layers_[static_cast<size_t>(index)]->as_kv();
  LARDER_ASSERT(layer != nullptr);
  return *layer;
}

const KVLayer& Cache::kv(int32_t index) const { return const_cast<Cache*>(this)->kv(index); }

StateLayer& Cache::state(int32_t index) {
  StateLayer* layer = layers_[static_cast<size_t>(index)]->as_state();
  LARDER_ASSERT(layer != nullptr);
  return *layer;
}

KVLayer& Cache::cross(int32_t index) {
  KVLayer* layer = cross_[static_cast<size_t>(index)]->as_kv();
  LARDER_ASSERT(layer != nullptr);
  return *layer;
}

const KVLayer& Cache::cross(int32_t index) const { return const_cast<Cache*>(this)->cross(index); }

int64_t Cache::tentative_limit(int32_t row) const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& layer : layers_) least = std::min(least, layer->tentative_limit(row));
  return least;
}

int64_t Cache::step_limit(int32_t row) const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& layer : layers_) least = std::min(least, layer->step_limit(row));
  return least;
}

// All layers prepare before the first one changes, so an error on the way leaves every layer as it
// was.
template <class Prepare>
void Cache::apply_to_all(std::initializer_list<const Layers*> lists, const Prepare& prepare) {
  std::vector<std::unique_ptr<Change>> changes;
  for (const Layers* list : lists)
    for (const auto& layer : *list) changes.push_back(prepare(*layer));
  for (const auto& change : changes) change->apply();
}

void Cache::select_rows(std::span<const int32_t> source) {
  apply_to_all({&layers_, &cross_}, [&](CacheLayer& layer) { return layer.select_rows(source); });
}

void Cache::shift(int32_t row, std::span<const ContextShift> shifts) {
  LARDER_ASSERT(shifts.size() == layers_.size());
  if (row < 0 || row >= batch()) fail("row ", row, " of a cache of ", batch(), " rows");
  size_t next = 0;
  apply_to_all({&layers_}, [&](CacheLayer& layer) { return layer.shift(row, shifts[next++]); });
}

void Cache::adopt(int32_t row, std::span<const SharedBlocks> layers) {
  LARDER_ASSERT(layers.size() == layers_.size() && row >= 0 && seq_len(row) == 0);
  size_t next = 0;
  apply_to_all({&layers_}, [&](CacheLayer& layer) {
    const SharedBlocks& of = layers[next++];
    return layer.as_kv()->adopt(row, of.first_block, of.blocks, of.len);
  });
}

Cache Cache::fork() const {
  const auto fork_all = [](const Layers& layers) {
    Layers forked;
    forked.reserve(layers.size());
    for (const auto& layer : layers) forked.push_back(layer->fork());
    return forked;
  };
  Layers layers = fork_all(layers_);
  return Cache(std::move(layers), fork_all(cross_));
}

void Cache::replace_layer(int32_t index, std::unique_ptr<CacheLayer> layer) {
  LARDER_ASSERT(layer->batch() == batch());
  layers_[static_cast<size_t>(index)] = std::move(layer);
}

void Cache::crop(std::span<const int64_t> len) {
  if (len.size() != static_cast<size_t>(batch())) {
    fail("crop of ", len.size(), " rows on a cache of ", batch(), " rows");
  }
  apply_to_all({&layers_}, [&](CacheLayer& layer) { return layer.crop(len); });
}

void Cache::reset() noexcept {
  for (const auto& layer : layers_) layer->reset();
  for (const auto& layer : cross_) layer->reset();
}

}  // namespace larder
