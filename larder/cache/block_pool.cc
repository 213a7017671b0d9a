#include "larder/cache/block_pool.h"

#include <numeric>

#include "larder/base/error.h"

namespace larder {

BlockPool::BlockPool(int32_t num_blocks)
    : free_(static_cast<size_t>(num_blocks)), taken_(static_cast<size_t>(num_blocks), false) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // 0 goes first
}

int32_t BlockPool::take() {
  if (free_.empty()) return kNone;
  const int32_t id = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(id)] = true;
  return id;
}

void BlockPool::give(int32_t id) noexcept {
  LARDER_ASSERT(id >= 0 && id < num_blocks() && taken(id));
  taken_[static_cast<size_t>(id)] = false;
  free_.push_back(id);
}

}  // namespace larder
