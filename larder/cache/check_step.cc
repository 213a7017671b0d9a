#include "larder/cache/check_step.h"

#include "larder/base/error.h"

namespace larder {

void check_step(const CacheLayer& layer, const Step& step) {
  const int64_t max_len = layer.max_len();
  for (int32_t b = 0; b < step.batch; ++b) {
    const int64_t len = layer.seq_len(step.slot[b]);
    const int64_t first = step.q_len(b) > 0 ? step.position[step.q_start[b]] : len;
    if (first != len) {
      fail("row ", step.slot[b], " of the cache holds ", len,
           " tokens, but the step begins at position ", first);
    }
    const int64_t need = len + step.q_len(b);
    if (need > INT32_MAX)
      fail_as(ErrorKind::kNoRoom, "row ", step.slot[b], " would pass ", INT32_MAX, " tokens");
    if (max_len >= 0 && need > max_len) {
      fail_as(ErrorKind::kNoRoom, "the cache is full: row ", step.slot[b], " needs ", need,
              " tokens (", len, " held and ", step.q_len(b), " new), but max_cache_len is ",
              max_len);
    }
  }
}

}  // namespace larder
