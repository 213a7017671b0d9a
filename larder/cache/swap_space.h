// Rows of a paged cache that stand aside in a file while the pool is full.
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/block_file.h"
#include "larder/cache/cache.h"
#include "larder/cache/paged_blocks.h"

namespace larder {

// Blocks are written and read as they are, so a row comes back bit for bit. The cache must outlive
// this; one thread at a time.
class SwapSpace {
 public:
  // Throws Error(kUnsupported) for a cache whose rows are no lists of equal blocks.
  SwapSpace(Cache& cache, std::unique_ptr<BlockFile> file);

  // What was put aside of one row. Holds its places in the file until drop().
  struct Row {
    int64_t len = 0;                   // tokens
    std::vector<int64_t> first_block;  // by layer
    std::vector<int32_t> places;       // of its blocks, layer by layer
    bool empty() const { return len == 0; }
  };
  // Writes what the row holds, which stays as it is. Throws Error(kIo), and nothing is kept.
  // Refuses a row that begins within a block (it was converted or shifted).
  Row put(int32_t row);
  // Gives a row without tokens what was put aside. Throws Error(kNoRoom) where the pool lacks
  // blocks and Error(kIo), with nothing changed; `aside` stays either way.
  void get(int32_t row, const Row& aside);
  void drop(Row& aside) noexcept;
  int64_t places_used() const { return places_ - static_cast<int64_t>(free_.size()); }

 private:
  int32_t take_place();
  int64_t offset_of(int32_t place) const { return place * static_cast<int64_t>(block_bytes_); }

  Cache& cache_;
  PagedBlocks& pool_;
  const size_t block_bytes_;
  std::unique_ptr<BlockFile> file_;
  std::vector<int32_t> free_;
  int32_t places_ = 0;  // that the file has
};

}  // namespace larder
