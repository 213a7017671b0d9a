#include "larder/generate/slots.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "larder/base/error.h"

namespace larder {

int32_t Slots::first_free() const {
  return static_cast<int32_t>(std::ranges::find(taken_, false) - taken_.begin());
}

int32_t Slots::take() {
  const int32_t slot = first_free();
  if (slot == size()) taken_.push_back(false);
  taken_[static_cast<size_t>(slot)] = true;
  return slot;
}

void Slots::give_back(int32_t slot) {
  LARDER_ASSERT(taken(slot));
  if (cache_.seq_len(slot) > 0) {
    std::vector<int64_t> len(static_cast<size_t>(cache_.batch()),
                             std::numeric_limits<int64_t>::max());
    len[static_cast<size_t>(slot)] = 0;
    cache_.crop(len);
  }
  taken_[static_cast<size_t>(slot)] = false;
}

std::vector<int32_t> Slots::copies_of(int32_t from, int32_t count) {
  std::vector<int32_t> source(static_cast<size_t>(cache_.batch())), copies;
  std::iota(source.begin(), source.end(), 0);
  for (int32_t slot = 0; static_cast<int32_t>(copies.size()) < count; ++slot) {
    if (slot < size() && taken(slot)) continue;
    LARDER_ASSERT(slot <= static_cast<int32_t>(source.size()));
    if (slot == static_cast<int32_t>(source.size())) source.push_back(from);
    source[static_cast<size_t>(slot)] = from;
    copies.push_back(slot);
  }
  cache_.select_rows(source);
  taken_.resize(std::max(taken_.size(), source.size()));
  for (const int32_t slot : copies) taken_[static_cast<size_t>(slot)] = true;
  return copies;
}

}  // namespace larder
