#include "larder/cache/offloaded_layer.h"

#include <algorithm>
#include <utility>

#include "larder/base/error.h"

namespace larder {

namespace {

void raise_to(BlockCounts& to, const BlockCounts& at_least) {
  for (const auto& [bytes, count] : at_least) {
    size_t& value = to[bytes];
    value = std::max(value, count);
  }
}

}  // namespace

std::shared_ptr<OffloadGroup> OffloadGroup::fork(size_t index) {
  std::shared_ptr<OffloadGroup> group = forked_.lock();
  if (!group || group->layers_[index] != nullptr) {
    group = std::make_shared<OffloadGroup>(blocks_, layers_.size());
    forked_ = group;
  }
  return group;
}

// The layer before (step = size - 1) or after (step = 1) `index`; null when there is no other.
OffloadedLayer* OffloadGroup::neighbour(size_t index, size_t step) const {
  for (size_t i = (index + step) % layers_.size(); i != index; i = (i + step) % layers_.size()) {
    if (layers_[i] != nullptr) return layers_[i];
  }
  return nullptr;
}

void OffloadGroup::count_pair(OffloadedLayer* first, OffloadedLayer* second) {
  const uint64_t number = blocks_->new_count();
  BlockCounts counts;
  for (const OffloadedLayer* layer : {first, second}) {
    if (layer == nullptr) continue;
    layer->for_each_block([&](CacheBlock& block) { TieredBlocks::count(block, number, counts); });
  }
  second->with_previous_.swap(counts);
}

// Layer `index` has other blocks than before.
void OffloadGroup::reserve_for(size_t index) { blocks_->reserve(held_, need_with(index)); }

// The same, where it has no more than before and nothing may fail: at worst memory is kept until
// the next reserve.
void OffloadGroup::give_back(size_t index) noexcept {
  try {
    BlockCounts need = need_with(index);
    for (auto& [bytes, count] : need) {
      const auto held = held_.find(bytes);
      count = std::min(count, held == held_.end() ? 0 : held->second);
    }
    blocks_->reserve(held_, need);
  } catch (const std::exception&) {
  }
}

BlockCounts OffloadGroup::need_with(size_t index) {
  OffloadedLayer* layer = layers_[index];
  OffloadedLayer* next = neighbour(index, 1);
  count_pair(neighbour(index, layers_.size() - 1), layer);
  if (next != nullptr) count_pair(layer, next);
  BlockCounts need;
  for (const OffloadedLayer* each : layers_)
    if (each != nullptr) raise_to(need, each->with_previous_);
  return need;
}

// Memory for one layer outside of a step.
void OffloadGroup::reserve_alone(const OffloadedLayer& layer) {
  BlockCounts need;
  const uint64_t number = blocks_->new_count();
  layer.for_each_block([&](CacheBlock& block) { TieredBlocks::count(block, number, need); });
  raise_to(need, held_);
  blocks_->reserve(held_, need);
}

// Layer `index` is to be read now, and the one after it next.
void OffloadGroup::take_turn(size_t index) {
  OffloadedLayer* layer = layers_[index];
  OffloadedLayer* next = neighbour(index, 1);
  for (OffloadedLayer* other : layers_)
    if (other != nullptr && other != layer && other != next) other->sleep();
  if (!layer->bring()) blocks_->fail_waking();
  if (next != nullptr) next->wake();  // where it cannot, it fails at its own turn
}

// Layer `index` has no blocks any more, or is none of the group's.
void OffloadGroup::emptied(size_t index) noexcept {
  for (OffloadedLayer* layer : {layers_[index], neighbour(index, 1)})
    if (layer != nullptr) layer->with_previous_.clear();
  if (std::ranges::all_of(layers_, [](const OffloadedLayer* layer) {
        return layer == nullptr || layer->with_previous_.empty();
      })) {
    blocks_->release(held_);
  }
}

OffloadedLayer::OffloadedLayer(std::shared_ptr<OffloadGroup> group, size_t index,
                               std::unique_ptr<KVLayer> inner)
    : group_(std::move(group)), index_(index), inner_(std::move(inner)) {
  LARDER_ASSERT(group_->layers_[index_] == nullptr);
  group_->layers_[index_] = this;
}

OffloadedLayer::~OffloadedLayer() {
  sleep();
  inner_.reset();
  group_->layers_[index_] = nullptr;
  group_->emptied(index_);
}

// Pins the layer's blocks and has them read. False, with nothing pinned, when there is no memory
// for them, which happens only when idle blocks cannot be written.
bool OffloadedLayer::wake() const noexcept {
  if (awake_) return true;
  size_t pinned = 0;
  bool all = true;
  for_each_block([&](CacheBlock& block) {
    all = all && blocks().wake(block);
    if (all) ++pinned;
  });
  if (!all) {
    for_each_block([&](CacheBlock& block) {
      if (pinned > 0) {
        blocks().unpin(block);
        --pinned;
      }
    });
  }
  awake_ = all;
  return all;
}

// Has the blocks in memory, to be read and written. False when the file failed; the layer then is
// not awake.
bool OffloadedLayer::bring() const noexcept {
  bool all = wake();
  if (all) {
    for_each_block([&](CacheBlock& block) { all = blocks().finish(block) && all; });
    if (!all) sleep();
  }
  return all;
}

// Lets the blocks go: they stay in memory until others want it. Before the layer's blocks become
// others, so that what was pinned is unpinned.
void OffloadedLayer::sleep() const noexcept {
  if (!std::exchange(awake_, false)) return;
  for_each_block([&](CacheBlock& block) { blocks().unpin(block); });
}

// After blocks that the step may write were written: has them brought to the file beside what
// follows.
void OffloadedLayer::written() noexcept {
  for_each_block([&](CacheBlock& block) {
    TieredBlocks::mark_step(block);
    blocks().write_back(block);
  });
}

void OffloadedLayer::refuse_lost() const {
  if (!lost_) return;
  fail_as(ErrorKind::kIo, "tokens of an offloaded layer were lost when its file could not be read;",
          " reset() the cache");
}

void OffloadedLayer::reserve(const Step& step) {
  refuse_lost();
  blocks().throw_failure();
  sleep();
  for_each_block([](CacheBlock& block) { TieredBlocks::clear_step(block); });
  inner_->reserve(step);
  for_each_block([](CacheBlock& block) { TieredBlocks::note_step(block); });
  appended_ = false;
  try {
    group_->reserve_for(index_);
  } catch (...) {
    inner_->cancel(step);
    group_->give_back(index_);
    throw;
  }
}

KVView OffloadedLayer::append(const Exec& exec, const TensorView& k, const TensorView& v,
                              const Step& step) {
  group_->take_turn(index_);
  appended_ = true;
  return inner_->append(exec, k, v, step);
}

void OffloadedLayer::commit(const Step& step) {
  if (!awake_) group_->take_turn(index_);
  sleep();
  inner_->commit(step);
  written();
}

void OffloadedLayer::accept(const Step& step, std::span<const int32_t> count) {
  group_->take_turn(index_);
  sleep();
  inner_->accept(step, count);
  written();
  group_->give_back(index_);
}

void OffloadedLayer::cancel(const Step& step) noexcept {
  // A window takes tokens back that it had pushed out, for which it needs its blocks.
  if (std::exchange(appended_, false) && !bring() && !bring()) lost_ = true;
  sleep();
  inner_->cancel(step);
  written();
  group_->give_back(index_);
}

// Has the blocks in memory outside of the layer's turn. They stay there until another layer wakes.
void OffloadedLayer::visit() const {
  refuse_lost();
  if (!awake_) group_->reserve_alone(*this);
  if (!bring()) blocks().fail_waking();
}

void OffloadedLayer::read(int32_t row, const TensorView& k, const TensorView& v) const {
  const bool before = awake_;
  visit();
  if (!before) sleep();
  inner_->read(row, k, v);
}

RowImage OffloadedLayer::save(int32_t row, Allocator& allocator) const {
  const bool before = awake_;
  visit();
  if (!before) sleep();
  return inner_->save(row, allocator);
}

// A change of which blocks the layer has, not of what is in them.
std::unique_ptr<Change> OffloadedLayer::sleeping(std::unique_ptr<Change> change) {
  return prepared([this, change = std::move(change)]() noexcept {
    sleep();
    change->apply();
    group_->give_back(index_);
  });
}

std::unique_ptr<Change> OffloadedLayer::select_rows(std::span<const int32_t> source) {
  return sleeping(inner_->select_rows(source));
}

std::unique_ptr<Change> OffloadedLayer::crop(std::span<const int64_t> len) {
  return sleeping(inner_->crop(len));
}

std::unique_ptr<Change> OffloadedLayer::shift(int32_t row, const ContextShift& shift) {
  const TieredBlocks::BornAwake born(blocks());  // codes are made anew before anything moves
  visit();
  sleep();
  auto change = inner_->shift(row, shift);
  group_->reserve_alone(*this);
  return prepared([this, change = std::move(change)]() noexcept {
    lost_ = !bring() && !bring();
    sleep();
    if (lost_) return;
    for_each_block([](CacheBlock& block) { block.mark_dirty(); });
    change->apply();
    group_->give_back(index_);
  });
}

std::unique_ptr<Change> OffloadedLayer::load(std::span<const RowImageView> rows) {
  const TieredBlocks::BornAwake born(blocks());
  visit();  // spare blocks may get the rows
  sleep();
  return sleeping(inner_->load(rows));
}

std::unique_ptr<Change> OffloadedLayer::assign(std::span<const RowTokens> rows) {
  const TieredBlocks::BornAwake born(blocks());
  visit();
  sleep();
  return sleeping(inner_->assign(rows));
}

void OffloadedLayer::reset() noexcept {
  sleep();
  inner_->reset();
  lost_ = appended_ = false;
  group_->emptied(index_);
}

std::unique_ptr<CacheLayer> OffloadedLayer::fork() const {
  refuse_lost();
  return std::make_unique<OffloadedLayer>(group_->fork(index_), index_, kv_layer(inner_->fork()));
}

std::unique_ptr<KVLayer> kv_layer(std::unique_ptr<CacheLayer> layer) {
  KVLayer* kv = layer->as_kv();
  LARDER_ASSERT(kv != nullptr);
  static_cast<void>(layer.release());
  return std::unique_ptr<KVLayer>(kv);
}

}  // namespace larder
