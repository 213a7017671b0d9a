#include "larder/cache/paged_blocks.h"

#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/tensor/shape.h"

namespace larder {

PagedBlocks::Size::Size(Allocator& allocator, const PagedSize& of)
    : bytes((of.bytes + kAlignment - 1) / kAlignment * kAlignment),
      what(of.what),
      pool(of.num_blocks),
      memory(allocator,
             static_cast<size_t>(checked_mul(static_cast<int64_t>(bytes), of.num_blocks)), "kv") {
  for (int32_t id = 0; id < of.num_blocks; ++id)
    blocks.emplace_back(*this, id, memory.data() + static_cast<size_t>(id) * bytes, bytes);
}

PagedBlocks::PagedBlocks(Allocator& allocator, std::span<const PagedSize> sizes) {
  LARDER_ASSERT(!sizes.empty() && std::ranges::is_sorted(sizes, {}, &PagedSize::bytes));
  for (const PagedSize& size : sizes) sizes_.emplace_back(allocator, size);
}

void PagedBlocks::Block::retire() noexcept { home_.pool.give(id_); }

PagedBlocks::Size& PagedBlocks::size_for(size_t bytes) {
  for (Size& size : sizes_)
    if (size.bytes >= bytes) return size;
  fail("a block of ", bytes, " bytes from a pool whose largest have ", sizes_.back().bytes);
}

BlockPtr PagedBlocks::make(size_t bytes) {
  Size& size = size_for(bytes);
  int32_t id = size.pool.take();
  while (id == BlockPool::kNone && reclaim_ && reclaim_()) id = size.pool.take();
  if (id == BlockPool::kNone) {
    fail_as(ErrorKind::kNoRoom, "the paged pool is full: all ", size.pool.num_blocks(), " ",
            size.what, " of ", size.bytes,
            " bytes are taken; give it more blocks, or run fewer or shorter sequences");
  }
  return BlockPtr(&size.blocks[static_cast<size_t>(id)]);
}

void PagedBlocks::copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) {
  if (bytes > 0) std::memcpy(to.data() + offset, from.data() + offset, bytes);
}

PagedBlocks::Place PagedBlocks::place_of(const CacheBlock& block) const {
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const Size& size = sizes_[i];
    const std::byte* begin = size.memory.data();
    if (block.data() >= begin && block.data() < begin + size.memory.size())
      return {i, static_cast<int32_t>(static_cast<size_t>(block.data() - begin) / size.bytes)};
  }
  LARDER_ASSERT(false && "a block of this pool");
  return {};
}

int32_t PagedBlocks::holders(size_t size, int32_t id) const {
  return sizes_[size].blocks[static_cast<size_t>(id)].holders();
}

}  // namespace larder
