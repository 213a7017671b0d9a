// State layers of Mamba and recurrent models.
#include "larder/base/error.h"
#include "larder/cache/kinds.h"

namespace larder {

std::unique_ptr<CacheLayer> make_state_layer(const LayerSpec& /*spec*/, Allocator& /*allocator*/) {
  fail_as(ErrorKind::kUnsupported, "state layers");
}

}  // namespace larder
