// One forward over a flat list of tokens of several rows: a prompt, a batch of prompts of different
// lengths, a beam, or prefill and decode mixed. There is no padding inside.
#pragma once

#include <cstdint>

namespace larder {

// Plain data; the arrays must outlive the step. Row b of the step owns tokens [q_start[b],
// q_start[b + 1]), which follow what cache row slot[b] holds: position[q_start[b]] is that row's
// length, and positions within a row are consecutive.
struct Step {
  int32_t batch = 0, total_q = 0;
  const int32_t* q_start = nullptr;   // [batch + 1]
  const int64_t* position = nullptr;  // [total_q]
  const int32_t* slot = nullptr;      // [batch] cache rows, all different
  bool tentative = false;             // commit nothing until Cache::accept (speculation)

  int32_t q_len(int32_t row) const { return q_start[row + 1] - q_start[row]; }
};

}  // namespace larder
