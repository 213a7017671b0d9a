// What a view shows, walked slot by slot as the eager attention does.
#pragma once

#include <map>

#include "larder/tensor/kv_view.h"

namespace larder::test {

// Position -> the number that fills the token's K (see kv_steps.h), of one row of the step. Fails
// the test unless all heads and channels agree, V holds number + 0.5, and positions follow one
// another.
std::map<int64_t, float> shown(const KVView& view, int32_t row);

}  // namespace larder::test
