#include "larder/cache/tiered_blocks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "larder/base/error.h"
#include "larder/tensor/shape.h"

namespace larder {
namespace {

TieredBlock& tiered(CacheBlock& block) { return static_cast<TieredBlock&>(block); }

template <class T>
void grow(std::vector<T>& list, size_t capacity) {
  if (list.capacity() < capacity) list.reserve(2 * capacity);
}

}  // namespace

TieredBlock::~TieredBlock() { home_.forget(*this); }

TieredBlocks::TieredBlocks(Allocator& allocator, std::unique_ptr<BlockFile> file)
    : allocator_(allocator), file_(std::move(file)), worker_(*file_) {}

TieredBlocks::~TieredBlocks() { LARDER_ASSERT(blocks_ == 0); }

// A free run of the file that is long enough, or more of the file.
FilePlaces::node_type TieredBlocks::take_place(size_t bytes) {
  const auto length = static_cast<int64_t>(bytes);
  FilePlaces made;
  for (auto& [offset, free] : places_) {
    if (free == length) return places_.extract(offset);
    if (free < length) continue;
    made.emplace(offset + free - length, length);
    free -= length;
    return made.extract(made.begin());
  }
  made.emplace(end_, length);
  const int64_t end = checked_add(end_, length);
  file_->allocate(end_, bytes);
  end_ = end;
  return made.extract(made.begin());
}

// Does not allocate: the block brings its own node.
void TieredBlocks::free_place(FilePlaces::node_type place) noexcept {
  auto at = places_.insert(std::move(place)).position;
  const auto next = std::next(at);
  if (next != places_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    places_.erase(next);
  }
  if (at == places_.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  places_.erase(at);
}

BlockPtr TieredBlocks::make(size_t bytes) {
  std::unique_ptr<BlockFrame> frame;
  Size& size = sizes_[bytes];
  if (born_awake_ > 0) {
    frame = make_frame(bytes);
    make_room(size, 1);
  }
  auto owned = std::make_unique<TieredBlock>(*this, size, bytes);
  TieredBlock* const block = owned.get();
  block->place_ = take_place(bytes);
  ++size.blocks;
  ++blocks_;
  if (frame) {
    block->data_ = frame->memory.data();
    block->frame_ = std::move(frame);
    ++size.frames;
    ++frames_;
    add_idle(*block);
  }
  return BlockPtr(owned.release());
}

// A block dies: its place and its frame are free, once no copy uses them.
void TieredBlocks::forget(TieredBlock& block) noexcept {
  if (block.place_.empty()) return;  // never came to be
  if (block.frame_) {
    worker_.wait(block.frame_->ticket);
    if (block.pins_ == 0) remove_idle(block);
    block.of_size_.free.push_back(std::move(block.frame_));
  }
  free_place(std::move(block.place_));
  --block.of_size_.blocks;
  if (--blocks_ > 0) return;
  places_.clear();
  end_ = 0;
  file_->clear();
}

std::unique_ptr<BlockFrame> TieredBlocks::make_frame(size_t bytes) {
  return std::make_unique<BlockFrame>(BlockFrame{Buffer(allocator_, bytes, "kv"), 0, 0});
}

// The lists and the worker have places for so many more frames, so that nothing on the way of a
// step allocates.
void TieredBlocks::make_room(Size& size, size_t frames) {
  grow(size.free, size.frames + frames);
  grow(size.idle, size.frames + frames);
  worker_.reserve(frames_ + frames);
}

void TieredBlocks::reserve(BlockCounts& held, const BlockCounts& need) {
  std::vector<std::pair<Size*, std::vector<std::unique_ptr<BlockFrame>>>> added;
  BlockCounts result = need;
  size_t all = 0;
  for (const auto& [bytes, count] : need) {
    Size& size = sizes_[bytes];
    const auto before = held.find(bytes);
    const size_t reserved = size.reserved + count - (before == held.end() ? 0 : before->second);
    if (reserved <= size.frames) continue;
    const size_t more = reserved - size.frames;
    std::vector<std::unique_ptr<BlockFrame>> frames;
    while (frames.size() < more) frames.push_back(make_frame(bytes));
    make_room(size, more + all);
    all += more;
    added.emplace_back(&size, std::move(frames));
  }
  for (auto& [size, frames] : added) {
    size->frames += frames.size();
    frames_ += frames.size();
    for (auto& frame : frames) size->free.push_back(std::move(frame));
  }
  for (const auto& [bytes, count] : need) sizes_.find(bytes)->second.reserved += count;
  for (const auto& [bytes, count] : held) sizes_.find(bytes)->second.reserved -= count;
  held.swap(result);
  trim();
}

void TieredBlocks::release(BlockCounts& held) noexcept {
  for (const auto& [bytes, count] : held) sizes_.find(bytes)->second.reserved -= count;
  held.clear();
  trim();
}

void TieredBlocks::count(CacheBlock& block, uint64_t count, BlockCounts& counts) {
  if (std::exchange(tiered(block).counted_, count) != count) ++counts[block.size()];
}

void TieredBlocks::trim() noexcept {
  for (auto at = sizes_.begin(); at != sizes_.end();) {
    Size& size = at->second;
    trim(size);
    at = size.blocks + size.frames + size.reserved == 0 ? sizes_.erase(at) : std::next(at);
  }
}

// Gives back the memory of frames beyond those reserved, as far as they are not in use.
void TieredBlocks::trim(Size& size) noexcept {
  if (size.frames <= size.reserved) return;
  for (TieredBlock* block : size.idle) write_back(*block);  // all at once, then wait
  while (size.frames > size.reserved) {
    const std::unique_ptr<BlockFrame> frame = take_frame(size);
    if (!frame) return;
    --size.frames;
    --frames_;
  }
}

// A frame that no block has: a free one, or that of an idle block, if possible one that need not be
// written first.
std::unique_ptr<BlockFrame> TieredBlocks::take_frame(Size& size) noexcept {
  if (!size.free.empty()) {
    std::unique_ptr<BlockFrame> frame = std::move(size.free.back());
    size.free.pop_back();
    return frame;
  }
  TieredBlock* victim = find_victim(size, true);
  if (!victim) victim = find_victim(size, false);
  if (!victim) return nullptr;
  remove_idle(*victim);
  victim->data_ = nullptr;
  return std::move(victim->frame_);
}

// The idle block that was used last and can go: layers take turns, so it is wanted again last.
TieredBlock* TieredBlocks::find_victim(const Size& size, bool at_once) noexcept {
  for (size_t i = size.idle.size(); i-- > 0;) {
    TieredBlock& block = *size.idle[i];
    if (at_once && (block.dirty_ || !worker_.is_done(block.frame_->ticket))) continue;
    if (evict(block)) return &block;
  }
  return nullptr;
}

// Whether an idle block is in the file as it is in memory, or can be brought there.
bool TieredBlocks::evict(TieredBlock& block) noexcept {
  settle(block);
  if (!block.dirty_ || std::exchange(block.lacks_, false)) return true;
  start(block, true);
  settle(block);
  return !block.dirty_;
}

void TieredBlocks::start(TieredBlock& block, bool write) noexcept {
  BlockFrame& frame = *block.frame_;
  if (write) {
    block.dirty_ = false;
    block.stored_ = true;
  } else {
    block.reading_ = true;
  }
  frame.ticket =
      worker_.start({write, block.place(), frame.memory.data(), block.size(), &frame.error});
}

bool TieredBlocks::wake(CacheBlock& cache_block) noexcept {
  TieredBlock& block = tiered(cache_block);
  if (block.reading_ && worker_.is_done(block.frame_->ticket)) settle(block);
  if (block.frame_) {
    if (block.pins_ == 0) remove_idle(block);
  } else {
    block.frame_ = take_frame(block.of_size_);
    if (!block.frame_) return false;
    block.data_ = block.frame_->memory.data();
    block.lacks_ = block.stored_;
  }
  ++block.pins_;
  if (std::exchange(block.lacks_, false)) start(block, false);
  return true;
}

// Waits for the block's copy. What was to be read and could not be is still in the file; what could
// not be written is still in memory.
void TieredBlocks::settle(TieredBlock& block) noexcept {
  worker_.wait(block.frame_->ticket);
  const bool failed = std::exchange(block.frame_->error, 0) != 0;
  const bool reading = std::exchange(block.reading_, false);
  if (!failed) return;
  if (reading)
    block.lacks_ = true;
  else
    block.dirty_ = true;
}

bool TieredBlocks::finish(CacheBlock& cache_block) noexcept {
  TieredBlock& block = tiered(cache_block);
  if (!block.frame_) return false;
  settle(block);
  return !block.lacks_;
}

void TieredBlocks::unpin(CacheBlock& cache_block) noexcept {
  TieredBlock& block = tiered(cache_block);
  if (block.pins_ == 0) return;
  if (--block.pins_ == 0 && block.frame_) add_idle(block);
}

void TieredBlocks::write_back(CacheBlock& cache_block) noexcept {
  TieredBlock& block = tiered(cache_block);
  if (!block.frame_ || !block.dirty_) return;
  settle(block);
  if (!block.lacks_) start(block, true);
}

void TieredBlocks::copy(CacheBlock& to_block, const CacheBlock& from_block, size_t offset,
                        size_t bytes) {
  TieredBlock& to = tiered(to_block);
  TieredBlock& from = tiered(const_cast<CacheBlock&>(from_block));  // only where it lies changes
  if (from.frame_ && !finish(from)) fail_copy(EIO, false);
  if (to.frame_ && !finish(to)) fail_copy(EIO, false);
  std::byte between[4096];
  for (size_t done = 0; done < bytes;) {
    const size_t at = offset + done;
    const size_t n = from.frame_ ? bytes - done : std::min(bytes - done, sizeof between);
    const std::byte* source = from.frame_ ? from.data_ + at : between;
    if (!from.frame_) {
      const int error = file_->read(from.place() + static_cast<int64_t>(at), between, n);
      if (error != 0) fail_copy(error, false);
    }
    if (to.frame_) {
      std::memcpy(to.data_ + at, source, n);
      to.dirty_ = true;
    } else {
      const int error = file_->write(to.place() + static_cast<int64_t>(at), source, n);
      if (error != 0) fail_copy(error, true);
      to.stored_ = true;
    }
    done += n;
  }
}

void TieredBlocks::fail_copy(int error, bool write) const {
  fail_as(ErrorKind::kIo, file_->name(), " could not be ", write ? "written" : "read", ": ",
          std::strerror(error), "; the tokens so far are kept, the step may be tried again");
}

void TieredBlocks::throw_failure() {
  bool write = false;
  const int error = worker_.take_error(write);
  if (error != 0) fail_copy(error, write);
}

void TieredBlocks::fail_waking() {
  throw_failure();
  fail_copy(EIO, true);
}

void TieredBlocks::add_idle(TieredBlock& block) noexcept {
  std::vector<TieredBlock*>& idle = block.of_size_.idle;
  block.idle_index_ = idle.size();
  idle.push_back(&block);
}

void TieredBlocks::remove_idle(TieredBlock& block) noexcept {
  std::vector<TieredBlock*>& idle = block.of_size_.idle;
  idle[block.idle_index_] = idle.back();
  idle[block.idle_index_]->idle_index_ = block.idle_index_;
  idle.pop_back();
}

void TieredBlocks::clear_step(CacheBlock& block) noexcept { tiered(block).in_step_ = false; }
void TieredBlocks::note_step(CacheBlock& block) noexcept {
  tiered(block).in_step_ = tiered(block).dirty_;
}
void TieredBlocks::mark_step(CacheBlock& block) noexcept {
  if (tiered(block).in_step_) tiered(block).dirty_ = true;
}

}  // namespace larder
