// The ecosystem's view of a cache of state layers: whole batches in and out, all rows alike.
#pragma once

#include <cstdint>

#include "larder/cache/cache.h"

namespace larder {

// The meaning of transformers' MambaCache: a fixed batch whose states begin as zeros. A state has
// no positions, so cache_position is not asked for: an update follows what was there. Borrows the
// cache, which must hold state layers only and no tokens, and the allocator.
class MambaCache {
 public:
  MambaCache(Cache& cache, Allocator& allocator, int32_t batch);

  // conv: [batch, conv_channels, n] new inputs of the convolution, the newest last; they push older
  // ones out of the window. ssm: [batch, conv_channels, state_size / conv_channels], which replaces
  // the state. Any float dtype and strides. Refuses another shape before any write.
  void update(int32_t layer, const TensorView& conv, const TensorView& ssm);
  Tensor conv_states(int32_t layer) const;  // [batch, conv_channels, conv_kernel] f32
  Tensor ssm_states(int32_t layer) const;  // [batch, conv_channels, state_size / conv_channels] f32
  void reset() { cache_.reset(); }

 private:
  Cache& cache_;
  Allocator& allocator_;
  int32_t batch_;
};

}  // namespace larder
