// What reserve() of every layer that keeps keys and values checks first.
#pragma once

#include "larder/cache/layer.h"

namespace larder {

// Refuses a row whose first position is not its length (kInvalid), and one that would pass
// max_len() or 2^31 - 1 tokens (kNoRoom).
void check_step(const CacheLayer& layer, const Step& step);

}  // namespace larder
