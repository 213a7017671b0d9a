// "dynamic": grows by blocks of 64 tokens and never copies an old token.
#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"

namespace larder {

std::unique_ptr<CacheLayer> make_dynamic_layer(const LayerSpec& spec, const CacheOptions& options,
                                               Allocator& allocator) {
  constexpr int32_t kBlockSize = 64;
  return std::make_unique<DenseLayer>(
      spec, options.dtype, DenseStorage{kBlockSize, DenseStorage::kUnbounded}, allocator);
}

}  // namespace larder
