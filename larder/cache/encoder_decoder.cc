// "encoder_decoder": another kind for the decoder's own layers, beside the cross layers that every
// cache of an encoder-decoder model has. Settings: "cache", the kind's name ("dynamic" when
// absent), and "cache_config", its settings.
#include "larder/cache/inner_kind.h"
#include "larder/cache/kinds.h"

namespace larder {

CacheLayers make_encoder_decoder_layers(std::span<const LayerSpec> specs,
                                        const CacheOptions& options, const CacheMemory& memory) {
  const InnerKind inner = read_inner_kind("encoder_decoder", "dynamic", options);
  return inner.kind.make(specs, inner.options, memory);
}

}  // namespace larder
