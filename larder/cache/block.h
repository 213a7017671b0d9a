// Pieces of a cache's storage, and where they come from. Layers never allocate on their own, so one
// layer's code serves memory and any slower tier alike.
#pragma once

#include <cstddef>
#include <memory>

#include "larder/tensor/allocator.h"

namespace larder {

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

 protected:
  CacheBlock(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
  bool dirty_ = true;
};

using BlockPtr = std::shared_ptr<CacheBlock>;

// Not thread-safe; outlives its blocks.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Not cleared. Throws OutOfMemory, or Error(kIo) where a slower tier is full.
  virtual BlockPtr make(size_t bytes) = 0;
  // Bytes [offset, offset + bytes) of `from` into the same place of `to`, wherever they are. Both
  // are this source's.
  virtual void copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) = 0;
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
