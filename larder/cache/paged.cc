// "paged": a fixed pool of blocks that every row and layer takes from, as vLLM has it (Kwon et al.
// 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention").
#include <algorithm>
#include <memory>

#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"
#include "larder/cache/larder_quantized_layer.h"
#include "larder/cache/paged_pool.h"

namespace larder {
namespace {

constexpr int32_t kMostListed = 4096;  // blocks a row that lists have room for from the start

}  // namespace

CacheLayers make_paged_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                              const CacheMemory& memory) {
  CacheLayers layers;
  if (specs.empty()) {
    read_paged_config(options, specs);
    return layers;
  }
  const auto [config, sizes] = plan_paged_pool(options, specs, memory.allocator);
  const auto pool = std::make_shared<PagedBlocks>(memory.allocator, sizes);
  const DenseStorage storage{
      config.block_size, DenseStorage::kUnbounded, options.rollback,
      static_cast<int32_t>(std::min<int64_t>(config.num_blocks, kMostListed))};
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!config.quantized) {
      layers.push_back(std::make_unique<DenseLayer>(specs[i], options.dtype, storage, pool));
      continue;
    }
    layers.push_back(std::make_unique<LarderQuantizedLayer>(
        specs[i],
        LarderQuantizedOptions{options.dtype, config.quantized->key[i], config.quantized->value[i],
                               config.quantized->residual_length, config.quantized->hadamard,
                               options.rollback},
        pool));
  }
  return layers;
}

}  // namespace larder
