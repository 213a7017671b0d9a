#include "larder/models/kv_counts.h"

#include <algorithm>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/window.h"

namespace larder {

PoolCounts::PoolCounts(std::span<const PagedSize> sizes) {
  for (const PagedSize& size : sizes) sizes_.push_back({size});
}

PoolCounts::Size& PoolCounts::size_for(int64_t block_bytes) {
  const auto holds = [&](const Size& size) {
    return size.of.block_bytes() >= static_cast<size_t>(block_bytes);
  };
  const auto at = std::ranges::find_if(sizes_, holds);
  LARDER_ASSERT(at != sizes_.end());
  return *at;
}

void PoolCounts::take(int64_t block_bytes, int64_t count) {
  Size& size = size_for(block_bytes);
  size.taken += count;
  size.most_taken = std::max(size.most_taken, size.taken);
  if (size.taken > size.of.num_blocks) refuse_full_pool(size.of);
}

void PoolCounts::give(int64_t block_bytes, int64_t count) { size_for(block_bytes).taken -= count; }

int64_t LayerCounts::reserve(std::span<const RowStep> step) {
  most_ = bytes_;
  reserve_blocks(step);
  return most_;
}

void LayerCounts::take(int64_t block_bytes, int64_t count) {
  if (block_bytes == 0 || count == 0) return;
  if (pool_ != nullptr) pool_->take(block_bytes, count);
  blocks_[static_cast<size_t>(block_bytes)] += static_cast<size_t>(count);
  bytes_ = checked_add(bytes_, checked_mul(block_bytes, count));
  most_ = std::max(most_, bytes_);
}

void LayerCounts::give(int64_t block_bytes, int64_t count) {
  if (block_bytes == 0 || count == 0) return;
  if (pool_ != nullptr) pool_->give(block_bytes, count);
  const auto at = blocks_.find(static_cast<size_t>(block_bytes));
  at->second -= static_cast<size_t>(count);
  if (at->second == 0) blocks_.erase(at);
  bytes_ -= block_bytes * count;
}

namespace {

class DenseCounts final : public LayerCounts {
 public:
  explicit DenseCounts(const DenseCut& cut)
      : cut_(cut), bytes_(checked_mul(cut.token_bytes, cut.block_size)) {}
  void commit(std::span<const RowStep> step) override {
    for (const RowStep& each : step) row_at(rows_, each).len += each.count;
  }

 private:
  struct Row {
    int64_t len = 0, first_block = 0, end_block = 0;
  };

  void reserve_blocks(std::span<const RowStep> step) override {
    for (const RowStep& each : step) {
      Row& row = row_at(rows_, each);
      drop_behind_window(row);
      if (each.count == 0) continue;
      const int64_t end = ceil_div(row.len + each.count, cut_.block_size);
      take(bytes_, end - std::exchange(row.end_block, end));
    }
  }

  void drop_behind_window(Row& row) {
    if (cut_.window == 0) return;
    const int64_t gone = (window_start(cut_.window, row.len) - cut_.rollback) / cut_.block_size;
    const int64_t first = std::clamp(gone, row.first_block, row.end_block);
    give(bytes_, first - std::exchange(row.first_block, first));
  }

  const DenseCut cut_;
  const int64_t bytes_;  // of a block
  std::vector<Row> rows_;
};

class RingCounts final : public LayerCounts {
 public:
  explicit RingCounts(const RingCut& ring) : ring_(ring) {}
  void commit(std::span<const RowStep> step) override {
    for (const RowStep& each : step) row_at(rows_, each).len += each.count;
  }

 private:
  struct Row {
    int64_t len = 0, pages = 0;
  };

  void reserve_blocks(std::span<const RowStep> step) override {
    int64_t tokens = 0;
    for (const RowStep& each : step) tokens += each.count;
    const int64_t bytes = checked_mul(tokens, ring_.token_bytes);
    if (step_ != bytes) give(std::exchange(step_, 0));
    for (const RowStep& each : step) {
      if (each.count == 0 || ring_.capacity == 0) continue;
      Row& row = row_at(rows_, each);
      const int64_t slots =
          ring_.bounded ? ring_.capacity : std::min(row.len + each.count, ring_.capacity);
      for (; row.pages < ceil_div(slots, ring_.page); ++row.pages)
        take(ring_.token_bytes * std::min(ring_.page, ring_.capacity - row.pages * ring_.page));
    }
    if (step_ == 0) take(step_ = bytes);
  }

  const RingCut ring_;
  std::vector<Row> rows_;
  int64_t step_ = 0;  // bytes of the block of the step's tokens
};

}  // namespace

std::unique_ptr<LayerCounts> count_dense(const DenseCut& cut) {
  return std::make_unique<DenseCounts>(cut);
}

std::unique_ptr<LayerCounts> count_ring(const RingCut& cut) {
  return std::make_unique<RingCounts>(cut);
}

}  // namespace larder
