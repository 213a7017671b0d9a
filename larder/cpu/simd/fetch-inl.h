// Asking memory ahead for weights that several tiles of rows share.
#pragma once

#include <cstdint>

namespace larder::cpu {
namespace {

constexpr int kIntoL2 = 2;
constexpr int64_t kLine = 64;

// Past so many rows memory is no limit, and fetching would only take time.
constexpr int64_t kRowsThatWait = 64;

// The share of the rows [row, row + rows) of `all` in the `bytes` from `first` on, in `steps`
// steps.
struct FetchShare {
  FetchShare(const char* first, int64_t bytes, int64_t steps, int64_t row, int64_t rows,
             int64_t all)
      : at(first + bytes * row / all),
        end(first + bytes * (row + rows) / all),
        lines((end - at + steps * kLine - 1) / (steps * kLine)) {}
  [[gnu::always_inline]] void step(int64_t /*i*/) {
    if (at >= end) return;
    for (int64_t n = 0; n < lines; ++n) __builtin_prefetch(at + n * kLine, 0, kIntoL2);
    at += lines * kLine;
  }
  const char* at;
  const char* end;
  int64_t lines;  // a step
};

}  // namespace
}  // namespace larder::cpu
