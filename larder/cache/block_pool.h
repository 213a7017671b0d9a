// Which blocks of a fixed pool are taken. Ids alone, no memory: what lies in a block is its
// owner's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace larder {

// Ids 0 .. num_blocks - 1. The one given back last is handed out first, while it may still be in a
// processor's cache. Not thread-safe; allocates in its constructor only.
class BlockPool {
 public:
  static constexpr int32_t kNone = -1;

  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(taken_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  bool taken(int32_t id) const { return taken_[static_cast<size_t>(id)]; }

  int32_t take();                  // kNone when all are taken
  void give(int32_t id) noexcept;  // Needs: taken(id).

 private:
  std::vector<int32_t> free_;
  std::vector<bool> taken_;
};

}  // namespace larder
