// Pieces of a cache's storage, and where they come from. Layers never allocate on their own, so one
// layer's code serves memory and any slower tier alike.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "larder/tensor/allocator.h"

namespace larder {

class PagedBlocks;

// One piece. Shared between rows and forks; whoever writes into one that another also holds copies
// it first.
class CacheBlock {
 public:
  virtual ~CacheBlock() = default;
  CacheBlock(const CacheBlock&) = delete;
  CacheBlock& operator=(const CacheBlock&) = delete;

  // Null while the block is not resident (offloaded layers between their turns).
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // To be called in reserve() on every block that the step will write: its copy in a slower tier
  // gets out of date.
  void mark_dirty() { dirty_ = true; }
  int32_t holders() const { return holders_.load(); }

 protected:
  CacheBlock(std::byte* data, size_t size) : data_(data), size_(size) {}
  // Called when the last holder has gone.
  virtual void retire() noexcept { delete this; }

  std::byte* data_;
  size_t size_;
  bool dirty_ = true;

 private:
  friend class BlockPtr;
  std::atomic<int32_t> holders_{0};
};

// One holder of a block among several. The count lies in the block, so that a block of a fixed pool
// is handed out without an allocation.
class BlockPtr {
 public:
  BlockPtr() = default;
  explicit BlockPtr(CacheBlock* block) noexcept : block_(block) { hold(); }
  BlockPtr(const BlockPtr& other) noexcept : block_(other.block_) { hold(); }
  BlockPtr(BlockPtr&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockPtr& operator=(BlockPtr other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockPtr() { reset(); }
  void reset() noexcept {
    CacheBlock* block = std::exchange(block_, nullptr);
    if (block != nullptr && block->holders_.fetch_sub(1) == 1) block->retire();
  }

  CacheBlock* get() const { return block_; }
  CacheBlock& operator*() const { return *block_; }
  CacheBlock* operator->() const { return block_; }
  explicit operator bool() const { return block_ != nullptr; }
  int32_t use_count() const { return block_ == nullptr ? 0 : block_->holders(); }

 private:
  void hold() noexcept {
    if (block_ != nullptr) block_->holders_.fetch_add(1);
  }
  CacheBlock* block_ = nullptr;
};

// Not thread-safe; outlives its blocks.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Not cleared. Throws OutOfMemory, or Error(kIo) where a slower tier is full.
  virtual BlockPtr make(size_t bytes) = 0;
  // Bytes [offset, offset + bytes) of `from` into the same place of `to`, wherever they are. Both
  // are this source's.
  virtual void copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) = 0;
  // The fixed pool that this is, if it is one.
  virtual PagedBlocks* as_paged() { return nullptr; }
};

// Where a cache's bytes come from.
struct CacheMemory {
  std::shared_ptr<BlockSource> blocks;  // what rows keep
  Allocator& allocator;                 // anything else; outlives the cache
};

// Blocks in memory, always resident (tag "kv").
class MemoryBlocks final : public BlockSource {
 public:
  explicit MemoryBlocks(Allocator& allocator) : allocator_(allocator) {}
  BlockPtr make(size_t bytes) override;
  void copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) override;

 private:
  Allocator& allocator_;
};

}  // namespace larder
