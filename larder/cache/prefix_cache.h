// Blocks of prompts that rows have computed, kept for rows to come that begin with the same tokens.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/cache/cache.h"
#include "larder/cache/paged_blocks.h"
#include "larder/cache/prefix_index.h"

namespace larder {

struct PrefixStats {
  int64_t queried_tokens = 0, hit_tokens = 0;  // of prompts that asked, and found
  int64_t evicted_blocks = 0;
};

// For a paged cache. Holds full blocks only, beside the rows that have them; a block that no row
// has stays until the pool needs it, the one used longest ago first. A layer with a window gives
// back blocks behind it like any row's, so a prefix can be resumed where the blocks of its last
// window are still there, and full layers have all. One cache, one thread at a time; the cache must
// outlive it.
class PrefixCache {
 public:
  // Throws Error(kUnsupported) with what why_no_shared_blocks() says.
  explicit PrefixCache(Cache& cache, PrefixIndex::Hash hash = {});
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  int32_t block_size() const { return block_size_; }

  // Where a row stands: the entry of its newest full block, and how many it has. Holds a place in
  // the index until release().
  struct Chain {
    int32_t entry = PrefixIndex::kNone;
    int64_t blocks = 0;
  };
  Chain begin(std::string_view salt);
  // Tokens of the prompt's beginning that adopt() would give, at most all but the last.
  int64_t match(std::span<const int32_t> prompt, std::string_view salt);
  // Gives the row, which has no tokens, what is known of the prompt's beginning. `chain` must be as
  // begin() made it; afterwards the row has chain.blocks blocks.
  void adopt(int32_t row, std::span<const int32_t> prompt, Chain& chain);
  // Takes in those full blocks of a row that holds `ids` which are new since the last call.
  void record(int32_t row, std::span<const int32_t> ids, Chain& chain);
  void release(Chain& chain) noexcept;

  // For files: a full block of tokens with a block of each layer, null where a window has passed
  // it.
  struct Entry {
    int64_t parent = -1;  // its place in the list; -1: it begins a prompt
    std::vector<int32_t> tokens;
    std::vector<const std::byte*> blocks;
  };
  // All of a salt, the one used last first, a parent always before its children. Blocks are valid
  // until something changes.
  std::vector<Entry> entries_of(std::string_view salt);
  // Takes in copies of such a list, as far as free blocks reach. Gives how many entries. Needs:
  // lengths as above, parents before their children.
  int64_t add_entries(std::string_view salt, std::span<const Entry> entries);
  const Cache& cache() const { return cache_; }
  size_t block_bytes() const { return pool_.block_bytes(0); }

  // Lets go of the blocks of the oldest entry that has some which no row has. False when none has.
  bool reclaim();
  int64_t reclaimable() const;  // blocks that reclaim() could give back in the end
  void clear();                 // lets go of everything
  const PrefixStats& stats() const { return stats_; }
  int32_t num_salts() const { return index_.num_salts(); }  // that it knows something of

 private:
  std::span<BlockPtr> blocks_of(int32_t entry);
  bool has_full_layers(int32_t entry);
  int64_t find_usable(int32_t root, std::span<const int32_t> prompt);
  bool has_windows(int64_t blocks);
  void move_on(Chain& chain, int32_t entry, int64_t blocks);
  bool let_go(int32_t entry);
  void tell(PoolEventKind kind, const BlockPtr& block) const;

  Cache& cache_;
  const size_t layers_;
  PagedBlocks& pool_;
  const int32_t block_size_;
  std::vector<int64_t> window_;  // by layer; 0 = keeps all
  PrefixIndex index_;
  std::vector<BlockPtr> blocks_;  // [entries, layers]
  std::vector<int32_t> found_;    // entries of the prompt that was looked for last
  PrefixStats stats_;
};

}  // namespace larder
