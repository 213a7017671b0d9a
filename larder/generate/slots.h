// Which rows of a cache are in use. A free row is one without tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "larder/cache/cache.h"

namespace larder {

// Rows are numbered densely: a row that is taken is the first free one, and a new one only when
// there is none. The cache must outlive this.
class Slots {
 public:
  explicit Slots(Cache& cache) : cache_(cache) {}

  // A row without tokens. It is in the cache from its first step on.
  int32_t take();
  // Empties the row: a kind that grows gives its blocks back.
  void give_back(int32_t slot);
  // Takes `count` rows that hold what `from` holds and share its blocks. Needs: every row in use
  // has been in a step. Throws as Cache::select_rows, with nothing taken.
  std::vector<int32_t> copies_of(int32_t from, int32_t count);

  int32_t size() const { return static_cast<int32_t>(taken_.size()); }  // rows ever taken
  bool taken(int32_t slot) const { return taken_[static_cast<size_t>(slot)]; }
  // Tokens that a step may feed to a row without tokens; see Cache::step_limit.
  int64_t step_limit_of_new() const { return cache_.step_limit(cache_.batch()); }

 private:
  int32_t first_free() const;

  Cache& cache_;
  std::vector<bool> taken_;
};

}  // namespace larder
