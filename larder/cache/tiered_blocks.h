// Blocks in two tiers: a few in memory, all of them with a place in a file. The least that
// offloaded layers need: who holds which blocks, and when, is theirs to say.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "larder/cache/block.h"
#include "larder/cache/block_file.h"
#include "larder/cache/copy_worker.h"

namespace larder {

class TieredBlocks;

// How many blocks of each size (bytes -> count).
using BlockCounts = std::map<size_t, size_t>;

// Memory for one block. `ticket` and `error` are of the copy asked for last.
struct BlockFrame {
  Buffer memory;
  uint64_t ticket = 0;
  int error = 0;
};

class TieredBlock;
// Runs of a file: offset -> length.
using FilePlaces = std::map<int64_t, int64_t>;

// The blocks of one size, and memory for them.
struct BlockSize {
  size_t blocks = 0, reserved = 0, frames = 0;
  std::vector<std::unique_ptr<BlockFrame>> free;
  std::vector<TieredBlock*> idle;
};

// A block is asleep (no frame), or resident: pinned by those who use it, else idle, which is to say
// in memory until its frame is wanted.
class TieredBlock final : public CacheBlock {
 public:
  TieredBlock(TieredBlocks& home, BlockSize& of_size, size_t size)
      : CacheBlock(nullptr, size), home_(home), of_size_(of_size) {}
  ~TieredBlock() override;

 private:
  friend class TieredBlocks;
  int64_t place() const { return place_.key(); }

  TieredBlocks& home_;
  BlockSize& of_size_;
  FilePlaces::node_type place_;        // in the file
  std::unique_ptr<BlockFrame> frame_;  // null = asleep
  int32_t pins_ = 0;
  bool stored_ = false;    // the file holds what the block held when it was last written there
  bool reading_ = false;   // the copy asked for last is into the frame
  bool lacks_ = false;     // resident, but what is in the file could not be read
  bool in_step_ = false;   // the step that was reserved last writes it
  uint64_t counted_ = 0;   // the count that saw it
  size_t idle_index_ = 0;  // in its size's idle list
};

// Memory is taken in reserve() only (tag "kv"): as many frames as were reserved, whatever the
// blocks are. A frame is never given to another block while a copy from or to it runs. One thread
// calls; the copies run on one of the object's own. A cache and its forks share one, so they belong
// to one thread at a time.
class TieredBlocks final : public BlockSource {
 public:
  TieredBlocks(Allocator& allocator, std::unique_ptr<BlockFile> file);
  ~TieredBlocks() override;

  // Born asleep, with a place in the file: a full disk is an Error(kIo) here and nowhere else.
  // Within a BornAwake: with memory of its own, idle.
  BlockPtr make(size_t bytes) override;
  void copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) override;
  class BornAwake {
   public:
    explicit BornAwake(TieredBlocks& blocks) : blocks_(blocks) { ++blocks_.born_awake_; }
    ~BornAwake() {
      if (--blocks_.born_awake_ == 0) blocks_.trim();
    }
    BornAwake(const BornAwake&) = delete;
    BornAwake& operator=(const BornAwake&) = delete;

   private:
    TieredBlocks& blocks_;
  };

  // Who reserved `held` frames has `need` now. Throws OutOfMemory, with nothing changed.
  void reserve(BlockCounts& held, const BlockCounts& need);
  // The same with less, which cannot fail: `held` frames become none.
  void release(BlockCounts& held) noexcept;
  // Adds `block` to `counts` unless it was seen since `count` began. Counts are numbered from 1.
  uint64_t new_count() { return ++count_; }
  static void count(CacheBlock& block, uint64_t count, BlockCounts& counts);

  // Pins the block and has it read where it sleeps. False, with nothing changed, when no frame is
  // free: more blocks are pinned than were reserved, or idle ones could not be written.
  bool wake(CacheBlock& block) noexcept;
  // Waits until data() may be read and written. False when reading failed; waking the block again
  // tries again.
  bool finish(CacheBlock& block) noexcept;
  void unpin(CacheBlock& block) noexcept;
  // Has a resident block that is dirty written to the file, beside whatever goes on.
  void write_back(CacheBlock& block) noexcept;

  // The marks of a step: mark_dirty() says what a step will write, but an eviction in mid-step
  // makes a block clean before the step has written it.
  static void clear_step(CacheBlock& block) noexcept;  // before the layer reserves
  static void note_step(CacheBlock& block) noexcept;   // after it
  static void mark_step(CacheBlock& block) noexcept;   // after the step has written

  // A copy beside the computation that failed is remembered: throws the first one since the last
  // call, Error(kIo). Nothing is lost by it: a block that could not be written stays in memory, one
  // that could not be read is in the file.
  void throw_failure();
  [[noreturn]] void fail_waking();  // after wake() or finish() gave false

 private:
  friend class TieredBlock;
  using Size = BlockSize;

  std::unique_ptr<BlockFrame> make_frame(size_t bytes);
  void make_room(Size& size, size_t frames);
  std::unique_ptr<BlockFrame> take_frame(Size& size) noexcept;
  TieredBlock* find_victim(const Size& size, bool at_once) noexcept;
  bool evict(TieredBlock& block) noexcept;
  void settle(TieredBlock& block) noexcept;
  void trim() noexcept;
  void trim(Size& size) noexcept;
  FilePlaces::node_type take_place(size_t bytes);
  void free_place(FilePlaces::node_type place) noexcept;
  void start(TieredBlock& block, bool write) noexcept;
  void add_idle(TieredBlock& block) noexcept;
  void remove_idle(TieredBlock& block) noexcept;
  void forget(TieredBlock& block) noexcept;
  [[noreturn]] void fail_copy(int error, bool write) const;

  Allocator& allocator_;
  std::unique_ptr<BlockFile> file_;
  std::map<size_t, BlockSize> sizes_;  // by bytes
  FilePlaces places_;                  // free ones
  size_t frames_ = 0, blocks_ = 0;     // of all sizes
  int64_t end_ = 0;                    // of the file
  uint64_t count_ = 0;
  int born_awake_ = 0;
  CopyWorker worker_;
};

}  // namespace larder
