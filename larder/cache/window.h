// What a layer with a window must hold, whatever it stores tokens in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "larder/cache/layer.h"

namespace larder {

// The first position that the next query of a row of `len` tokens may look at; window 0 sees all.
inline int64_t window_start(int64_t window, int64_t len) {
  return window == 0 ? 0 : std::max<int64_t>(0, len - window + 1);
}

// The most blocks of `block_size` tokens that a row has while it grows to `len` tokens in steps of
// at most `step`, and gives back those behind its window and `rollback` tokens more.
struct BlockWindow {
  int64_t window, rollback, block_size;
};
int64_t most_blocks(const BlockWindow& of, int64_t len, int64_t step);

// A row of a layer: it has seen `len` tokens and keeps those from position `first` on.
struct KeptTokens {
  int64_t row, first, len;
};

// Refuses (kUnsupported) to cut the row to `to` tokens where its window would lack some.
void check_window_crop(int64_t window, const KeptTokens& row, int64_t to);
// Refuses (kUnsupported) a row that begins too late for its window.
void check_window_begin(int64_t window, int64_t first, int64_t len);
// Refuses (kUnsupported) a shift by `discard` behind which the window would lack tokens before
// `keep`.
void check_window_shift(int64_t window, const KeptTokens& row, int64_t keep, int64_t discard);
// The same of a row of `len` tokens that keeps no more than its window asks for.
void check_window_can_shift(int64_t window, int64_t len, const ContextShift& shift);

}  // namespace larder
