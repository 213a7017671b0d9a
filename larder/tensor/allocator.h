// Where memory comes from. Every byte that larder holds for tensors and caches passes through one
// Allocator, so that its peak is a number and a limit is a limit. Allocators nest:
// Budget(Tracking(Host)).
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace larder {

constexpr size_t kAlignment = 64;

// Thread rule: allocate and release may be called from any thread.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // Gives at least `bytes` bytes, aligned to kAlignment, not cleared. `bytes` 0 gives nullptr.
  // `tag` says what for ("kv", "weights", "scratch") and is used in figures and errors. Throws
  // OutOfMemory.
  virtual void* allocate(size_t bytes, std::string_view tag) = 0;
  // Takes back what allocate(bytes, tag) gave.
  virtual void release(void* p, size_t bytes, std::string_view tag) noexcept = 0;
  // Bytes that a limit still leaves.
  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
  virtual size_t left() const { return kUnlimited; }
};

// The C++ heap. Has no state; make one wherever it is needed.
class HostAllocator final : public Allocator {
 public:
  void* allocate(size_t bytes, std::string_view tag) override;
  void release(void* p, size_t bytes, std::string_view tag) noexcept override;
};

struct MemoryStats {
  size_t live = 0;   // bytes handed out now
  size_t peak = 0;   // the most that was live at once
  size_t calls = 0;  // allocate() calls that succeeded
};

// Counts what passes through, in all and per tag.
class TrackingAllocator final : public Allocator {
 public:
  explicit TrackingAllocator(Allocator& inner) : inner_(inner) {}
  void* allocate(size_t bytes, std::string_view tag) override;
  void release(void* p, size_t bytes, std::string_view tag) noexcept override;
  size_t left() const override { return inner_.left(); }
  MemoryStats total() const;
  MemoryStats of(std::string_view tag) const;  // all zero for a tag never used

 private:
  Allocator& inner_;
  mutable std::mutex mutex_;
  MemoryStats total_;
  std::map<std::string, MemoryStats, std::less<>> tags_;
};

// A hard limit on live bytes. Past it: OutOfMemory with the tag, the request, what is live and the
// limit.
class BudgetAllocator final : public Allocator {
 public:
  BudgetAllocator(Allocator& inner, size_t limit) : inner_(inner), limit_(limit) {}
  void* allocate(size_t bytes, std::string_view tag) override;
  void release(void* p, size_t bytes, std::string_view tag) noexcept override;
  size_t left() const override;
  size_t live() const;
  size_t limit() const { return limit_; }

 private:
  Allocator& inner_;
  const size_t limit_;
  mutable std::mutex mutex_;
  size_t live_ = 0;
};

// Fails call number `fail_at` (from 0) with OutOfMemory, and no other. For tests.
class FaultAllocator final : public Allocator {
 public:
  explicit FaultAllocator(Allocator& inner, size_t fail_at = std::numeric_limits<size_t>::max())
      : inner_(inner), fail_at_(fail_at) {}
  void* allocate(size_t bytes, std::string_view tag) override;
  void release(void* p, size_t bytes, std::string_view tag) noexcept override;
  size_t left() const override { return inner_.left(); }
  void arm(size_t fail_at);  // counts calls from 0 again
  size_t calls() const;

 private:
  Allocator& inner_;
  mutable std::mutex mutex_;
  size_t fail_at_;
  size_t calls_ = 0;
};

// One allocation, given back on destruction. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Allocator& allocator, size_t bytes, std::string_view tag);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return bytes_; }

 private:
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::string tag_;
};

}  // namespace larder
