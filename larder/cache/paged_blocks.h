// Blocks of a fixed pool, for the paged cache: all memory is taken at the start, and a block costs
// no allocation afterwards.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "larder/cache/block.h"
#include "larder/cache/block_pool.h"
#include "larder/cache/pool_events.h"

namespace larder {

// Blocks of one size, and what they are for ("blocks", "exact blocks"): the word of messages.
struct PagedSize {
  size_t bytes = 0;
  int32_t num_blocks = 0;
  std::string what = "blocks";

  size_t block_bytes() const { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
};
// Throws Error(kNoRoom): somebody asks for a block, and all are taken.
[[noreturn]] void refuse_full_pool(const PagedSize& size);

// A block is one layer's K and V of block_size tokens, and any layer may take any of its size: the
// blocks that a sliding layer gives back serve the others. A quantized cache has two sizes, codes
// and recent exact tokens. One cache, its forks and its prefix cache share one, so they belong to
// one thread at a time.
class PagedBlocks final : public BlockSource {
 public:
  // Takes the memory (tag "kv"), one allocation a size. Throws OutOfMemory.
  PagedBlocks(Allocator& allocator, std::span<const PagedSize> sizes);

  // A block of the smallest size that holds `bytes`. Throws Error(kNoRoom) when those are all
  // taken and nothing can be reclaimed.
  BlockPtr make(size_t bytes) override;
  void copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) override;
  PagedBlocks* as_paged() override { return this; }

  // Asked for blocks when none are free: gives back at least one of what only it holds, or false.
  void on_empty(std::function<bool()> reclaim) { reclaim_ = std::move(reclaim); }
  // Who is told of blocks from here on, by the prefix cache too; null: nobody. Must outlive this,
  // or be taken away.
  void watch(PoolEvents* events);
  PoolEvents* watcher() const { return events_; }
  // A block's number among those of all sizes, as events have it. Needs: a block of this pool.
  int32_t number_of(const CacheBlock& block) const;
  int32_t num_blocks() const;  // of all sizes

  size_t num_sizes() const { return sizes_.size(); }
  const BlockPool& pool(size_t size) const { return sizes_[size].pool; }
  size_t block_bytes(size_t size) const { return sizes_[size].bytes; }
  int32_t holders(size_t size, int32_t id) const;  // how many have it; 0 = free

 private:
  struct Size;
  class Block final : public CacheBlock {
   public:
    Block(Size& home, int32_t id, std::byte* data, size_t size)
        : CacheBlock(data, size), home_(home), id_(id) {}

   private:
    friend class PagedBlocks;
    void retire() noexcept override;
    Size& home_;
    int32_t id_;
  };
  struct Size {
    Size(Allocator& allocator, const PagedSize& size, int32_t first_number);
    void tell(PoolEventKind kind, int32_t id) const noexcept;
    PagedSize of;
    size_t bytes;
    BlockPool pool;
    Buffer memory;
    std::deque<Block> blocks;
    int32_t first;  // number of block 0 among those of all sizes
    PoolEvents* events = nullptr;
  };
  Size& size_for(size_t bytes);

  std::deque<Size> sizes_;  // smallest first; blocks point to theirs
  std::function<bool()> reclaim_;
  PoolEvents* events_ = nullptr;
};

}  // namespace larder
