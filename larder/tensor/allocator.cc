#include "larder/tensor/allocator.h"

#include <algorithm>
#include <new>
#include <utility>

#include "larder/base/error.h"

namespace larder {

void* HostAllocator::allocate(size_t bytes, std::string_view tag) {
  if (bytes == 0) return nullptr;
  // Sanitizers and libc differ on sizes near the end of the address space; refuse those alike.
  constexpr size_t kLargest = std::numeric_limits<size_t>::max() / 4;
  void* p = bytes > kLargest ? nullptr
                             : ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (!p) throw OutOfMemory(std::string(tag), bytes, 0, OutOfMemory::kNoLimit);
  return p;
}

void HostAllocator::release(void* p, size_t /*bytes*/, std::string_view /*tag*/) noexcept {
  ::operator delete (p, std::align_val_t{kAlignment});
}

namespace {

void add(MemoryStats& stats, size_t bytes) {
  stats.live += bytes;
  stats.peak = std::max(stats.peak, stats.live);
  ++stats.calls;
}

}  // namespace

void* TrackingAllocator::allocate(size_t bytes, std::string_view tag) {
  if (bytes == 0) return nullptr;
  MemoryStats* stats = nullptr;
  {
    // The tag's entry first: making it may throw, and then nothing has been handed out.
    const std::lock_guard lock(mutex_);
    auto it = tags_.find(tag);
    if (it == tags_.end()) it = tags_.emplace(tag, MemoryStats{}).first;
    stats = &it->second;
  }
  void* p = inner_.allocate(bytes, tag);
  const std::lock_guard lock(mutex_);
  add(*stats, bytes);
  add(total_, bytes);
  return p;
}

void TrackingAllocator::release(void* p, size_t bytes, std::string_view tag) noexcept {
  if (!p) return;
  inner_.release(p, bytes, tag);
  const std::lock_guard lock(mutex_);
  if (const auto it = tags_.find(tag); it != tags_.end()) it->second.live -= bytes;
  total_.live -= bytes;
}

MemoryStats TrackingAllocator::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

MemoryStats TrackingAllocator::of(std::string_view tag) const {
  const std::lock_guard lock(mutex_);
  const auto it = tags_.find(tag);
  return it == tags_.end() ? MemoryStats{} : it->second;
}

void* BudgetAllocator::allocate(size_t bytes, std::string_view tag) {
  if (bytes == 0) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (bytes > limit_ - live_) throw OutOfMemory(std::string(tag), bytes, live_, limit_);
    live_ += bytes;
  }
  try {
    return inner_.allocate(bytes, tag);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    live_ -= bytes;
    throw;
  }
}

void BudgetAllocator::release(void* p, size_t bytes, std::string_view tag) noexcept {
  if (!p) return;
  inner_.release(p, bytes, tag);
  const std::lock_guard lock(mutex_);
  live_ -= bytes;
}

size_t BudgetAllocator::left() const { return std::min(inner_.left(), limit_ - live()); }

size_t BudgetAllocator::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

void* FaultAllocator::allocate(size_t bytes, std::string_view tag) {
  if (bytes == 0) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (calls_++ == fail_at_) throw OutOfMemory(std::string(tag), bytes, 0, OutOfMemory::kNoLimit);
  }
  return inner_.allocate(bytes, tag);
}

void FaultAllocator::release(void* p, size_t bytes, std::string_view tag) noexcept {
  if (p) inner_.release(p, bytes, tag);
}

void FaultAllocator::arm(size_t fail_at) {
  const std::lock_guard lock(mutex_);
  fail_at_ = fail_at;
  calls_ = 0;
}

size_t FaultAllocator::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

Buffer::Buffer(Allocator& allocator, size_t bytes, std::string_view tag)
    : allocator_(&allocator), data_(allocator.allocate(bytes, tag)), bytes_(bytes), tag_(tag) {}

Buffer::~Buffer() {
  if (data_) allocator_->release(data_, bytes_, tag_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : allocator_(other.allocator_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      tag_(std::move(other.tag_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(tag_, other.tag_);
  return *this;
}

}  // namespace larder
