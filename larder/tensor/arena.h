// Scratch memory of one step.
#pragma once

#include "larder/tensor/tensor.h"

namespace larder {

// Hands out pieces of one allocation, front to back, and takes them all back at once. reserve() is
// the only call that allocates; a step's take()s never do. Not thread-safe: one arena serves one
// generation.
class Arena {
 public:
  explicit Arena(Allocator& allocator) : allocator_(allocator) {}

  // Makes room for `bytes` (after alignment, see padded()). Keeps what is there when it suffices.
  // Needs: nothing taken. Throws OutOfMemory and keeps the old room.
  void reserve(size_t bytes);
  // An uninitialised contiguous tensor, aligned to kAlignment, valid until reset() or a Mark before
  // it is left. Throws Error naming the room and the need when it does not fit: the caller's sum of
  // padded() sizes was too small.
  TensorView take(const Shape& shape, DType dtype);
  void reset() noexcept { used_ = 0; }
  // Gives all room back to the allocator. Needs: nothing of it is used any more.
  void release() noexcept {
    buffer_ = Buffer();
    used_ = 0;
  }

  // What `count` elements of `dtype` take from the arena.
  static size_t padded(int64_t count, DType dtype);

  size_t capacity() const { return buffer_.size(); }
  size_t used() const { return used_; }
  size_t peak() const { return peak_; }

  // Gives back, at scope's end, everything taken after it was made.
  class Mark {
   public:
    explicit Mark(Arena& arena) : arena_(arena), used_(arena.used_) {}
    ~Mark() { arena_.used_ = used_; }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    Arena& arena_;
    size_t used_;
  };

 private:
  Allocator& allocator_;
  Buffer buffer_;
  size_t used_ = 0, peak_ = 0;
};

}  // namespace larder
