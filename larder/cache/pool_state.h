// Who has which block of a pool, by the events so far.
#pragma once

#include <compare>
#include <map>
#include <set>
#include <vector>

#include "larder/cache/pool_events.h"

namespace larder {

class PoolState {
 public:
  // One sample of a request.
  struct Owner {
    int64_t request = 0;
    int32_t sample = 0;
    auto operator<=>(const Owner&) const = default;
  };
  struct Block {
    bool taken = false, cached = false;
    std::set<Owner> owners;

    bool only_cached() const { return cached && owners.empty(); }
    int64_t holders() const { return static_cast<int64_t>(owners.size()) + (cached ? 1 : 0); }
  };
  struct Counts {
    int64_t free = 0, used = 0, cached = 0;  // cached: by nobody but the prefix cache
  };
  // Since the pool was made.
  struct Totals {
    int64_t hits = 0, hit_tokens = 0, copies = 0, evictions = 0, preemptions = 0;
    int64_t swapped_out = 0, swapped_in = 0;
    int64_t begun = 0, ended = 0, tokens_fed = 0;
  };

  // Throws Error for an event that cannot follow on those before it, which a file may hold; then
  // nothing more can be said of the pool.
  void apply(const PoolEvent& event);

  bool begun() const { return begun_; }  // the first event has come
  int64_t step() const { return step_; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  const std::vector<Block>& blocks() const { return blocks_; }
  Counts counts() const;
  const Totals& totals() const { return totals_; }
  // Those that have come and not ended, and their blocks.
  const std::map<Owner, std::set<int32_t>>& owners() const { return owners_; }
  // Those of them that wait, and their tokens that stand aside.
  const std::map<Owner, int64_t>& aside() const { return aside_; }

 private:
  void apply_to_block(const PoolEvent& event, int32_t number);
  void apply_to_owner(const PoolEvent& event);
  void make(int64_t num_blocks);
  void own(Owner owner, int32_t number);
  void let_go(Owner owner);
  std::set<int32_t>& blocks_of(Owner owner);
  Block& taken(int32_t number);

  bool begun_ = false;
  int64_t step_ = 0;
  std::vector<Block> blocks_;
  std::map<Owner, std::set<int32_t>> owners_;
  std::map<Owner, int64_t> aside_;
  Totals totals_;
};

}  // namespace larder
