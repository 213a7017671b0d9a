#include "larder/cache/block.h"

#include <cstring>

namespace larder {
namespace {

class MemoryBlock final : public CacheBlock {
 public:
  explicit MemoryBlock(Buffer buffer)
      : CacheBlock(buffer.data(), buffer.size()), buffer_(std::move(buffer)) {}

 private:
  Buffer buffer_;
};

}  // namespace

BlockPtr MemoryBlocks::make(size_t bytes) {
  return BlockPtr(new MemoryBlock(Buffer(allocator_, bytes, "kv")));
}

void MemoryBlocks::copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) {
  if (bytes > 0) std::memcpy(to.data() + offset, from.data() + offset, bytes);
}

}  // namespace larder
