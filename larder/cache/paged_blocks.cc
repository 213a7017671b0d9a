#include "larder/cache/paged_blocks.h"

#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/tensor/shape.h"

namespace larder {

void refuse_full_pool(const PagedSize& size) {
  fail_as(ErrorKind::kNoRoom, "the paged pool is full: all ", size.num_blocks, " ", size.what,
          " of ", size.block_bytes(),
          " bytes are taken; give it more blocks, or run fewer or shorter sequences");
}

PagedBlocks::Size::Size(Allocator& allocator, const PagedSize& size, int32_t first_number)
    : of(size),
      bytes(size.block_bytes()),
      pool(size.num_blocks),
      memory(allocator,
             static_cast<size_t>(checked_mul(static_cast<int64_t>(bytes), size.num_blocks)), "kv"),
      first(first_number) {
  for (int32_t id = 0; id < size.num_blocks; ++id)
    blocks.emplace_back(*this, id, memory.data() + static_cast<size_t>(id) * bytes, bytes);
}

PagedBlocks::PagedBlocks(Allocator& allocator, std::span<const PagedSize> sizes) {
  LARDER_ASSERT(!sizes.empty() && std::ranges::is_sorted(sizes, {}, &PagedSize::bytes));
  for (const PagedSize& size : sizes) sizes_.emplace_back(allocator, size, num_blocks());
}

void PagedBlocks::Size::tell(PoolEventKind kind, int32_t id) const noexcept {
  if (events == nullptr) return;
  const int32_t number = first + id;
  events->on_event({.kind = kind, .blocks = {&number, 1}});
}

void PagedBlocks::Block::retire() noexcept {
  home_.pool.give(id_);
  home_.tell(PoolEventKind::kFree, id_);
}

void PagedBlocks::watch(PoolEvents* events) {
  events_ = events;
  for (Size& size : sizes_) size.events = events;
}

int32_t PagedBlocks::number_of(const CacheBlock& block) const {
  const auto& own = static_cast<const Block&>(block);
  return own.home_.first + own.id_;
}

int32_t PagedBlocks::num_blocks() const {
  return sizes_.empty() ? 0 : sizes_.back().first + sizes_.back().pool.num_blocks();
}

PagedBlocks::Size& PagedBlocks::size_for(size_t bytes) {
  for (Size& size : sizes_)
    if (size.bytes >= bytes) return size;
  fail("a block of ", bytes, " bytes from a pool whose largest have ", sizes_.back().bytes);
}

BlockPtr PagedBlocks::make(size_t bytes) {
  Size& size = size_for(bytes);
  int32_t id = size.pool.take();
  while (id == BlockPool::kNone && reclaim_ && reclaim_()) id = size.pool.take();
  if (id == BlockPool::kNone) refuse_full_pool(size.of);
  size.tell(PoolEventKind::kAllocate, id);
  return BlockPtr(&size.blocks[static_cast<size_t>(id)]);
}

void PagedBlocks::copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) {
  if (bytes > 0) std::memcpy(to.data() + offset, from.data() + offset, bytes);
  // Layers copy in pieces, the one at offset 0 among them.
  if (events_ == nullptr || bytes == 0 || offset != 0) return;
  const int32_t numbers[] = {number_of(from), number_of(to)};
  events_->on_event({.kind = PoolEventKind::kCopy, .blocks = numbers});
}

int32_t PagedBlocks::holders(size_t size, int32_t id) const {
  return sizes_[size].blocks[static_cast<size_t>(id)].holders();
}

}  // namespace larder
