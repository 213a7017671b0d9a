// Lengths of the rows of a view.
#pragma once

#include <cstdint>

#include "larder/tensor/kv_view.h"

namespace larder {

// The keys of the longest row: by the lengths where the view has them, else at most the sum of
// max_len (rows may part their tokens among the segments in different ways).
inline int64_t longest_row(const KVView& view, int32_t batch) {
  int64_t most = 0, longest = 0;
  bool known = true;
  for (int32_t s = 0; s < view.num_segments; ++s) {
    most += view.segment[s].max_len;
    known = known && view.segment[s].len != nullptr;
  }
  for (int32_t b = 0; known && b < batch; ++b) {
    int64_t keys = 0;
    for (int32_t s = 0; s < view.num_segments; ++s) keys += view.segment[s].len[b];
    longest = keys > longest ? keys : longest;
  }
  return known ? longest : most;
}

}  // namespace larder
