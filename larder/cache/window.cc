#include "larder/cache/window.h"

#include "larder/base/error.h"

namespace larder {

int64_t most_blocks(const BlockWindow& of, int64_t len, int64_t step) {
  const int64_t all = ceil_div(len, of.block_size);
  if (of.window == 0) return all;
  const int64_t kept = of.window - 1 + of.rollback + std::min(step, len);
  // Where they begin within a block costs one more.
  return std::min(all, ceil_div(kept, of.block_size) + 1);
}

void check_window_crop(int64_t window, const KeptTokens& row, int64_t to) {
  const int64_t needed = window_start(window, to);
  if (to >= row.len || needed >= to || needed >= row.first) return;
  fail_as(ErrorKind::kUnsupported, "row ", row.row, " cannot be cropped from ", row.len, " to ", to,
          " tokens: a window of ", window, " needs those from position ", needed,
          ", but the layer keeps only those from ", row.first, "; a larger rollback keeps more");
}

void check_window_begin(int64_t window, int64_t first, int64_t len) {
  const int64_t needed = window_start(window, len);
  if (needed >= first || needed >= len) return;
  if (window == 0) {
    fail_as(ErrorKind::kUnsupported, "the row begins at position ", first,
            ", but the layer keeps every token from position 0 on");
  }
  fail_as(ErrorKind::kUnsupported, "the row begins at position ", first, ", but a window of ",
          window, " at ", len, " tokens needs those from position ", needed);
}

void check_window_shift(int64_t window, const KeptTokens& row, int64_t keep, int64_t discard) {
  const int64_t needed = window_start(window, row.len - discard);
  // Tokens before `keep` stay where they are, so they must still be there if the window needs them.
  if (needed >= keep || needed >= row.first) return;
  fail_as(ErrorKind::kUnsupported, "row ", row.row, " of ", row.len, " tokens cannot shift by ",
          discard, ": a window of ", window, " then needs tokens from position ", needed,
          ", but the layer keeps only those from ", row.first);
}

void check_window_can_shift(int64_t window, int64_t len, const ContextShift& shift) {
  const int64_t needed = window_start(window, len - shift.discard);
  if (needed >= shift.keep || needed >= window_start(window, len)) return;
  fail_as(ErrorKind::kUnsupported, "a row of ", len, " tokens cannot shift by ", shift.discard,
          ": behind the ", shift.keep + shift.discard, " kept and discarded ones a window of ",
          window, " needs ", window - 1, " tokens more; discard fewer");
}

}  // namespace larder
