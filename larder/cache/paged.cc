// "paged": a fixed pool of blocks that every row and layer takes from, as vLLM has it (Kwon et al.
// 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention").
#include <algorithm>
#include <memory>

#include "larder/base/error.h"
#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"
#include "larder/cache/larder_quantized_layer.h"
#include "larder/cache/paged_blocks.h"
#include "larder/cache/paged_config.h"

namespace larder {
namespace {

constexpr int32_t kMostListed = 4096;  // blocks a row that lists have room for from the start

// Blocks of all layers, as a pool numbers them.
int32_t of_all_layers(int64_t blocks, int64_t num_layers) {
  const int64_t all = checked_mul(blocks, num_layers);
  if (all > INT32_MAX) {
    fail("cache_config: a pool of ", blocks, " blocks for each of ", num_layers,
         " layers; all together must be at most ", INT32_MAX);
  }
  return static_cast<int32_t>(all);
}

int64_t exact_bytes(const LayerSpec& spec, DType dtype, int64_t tokens) {
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  return checked_mul(checked_mul(2 * element, spec.num_kv_heads),
                     checked_mul(spec.head_dim, tokens));
}

int64_t most_exact_bytes(std::span<const LayerSpec> specs, DType dtype, int64_t tokens) {
  int64_t most = 0;
  for (const LayerSpec& spec : specs) most = std::max(most, exact_bytes(spec, dtype, tokens));
  return most;
}

}  // namespace

CacheLayers make_paged_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                              const CacheMemory& memory) {
  PagedConfig config = read_paged_config(options, specs);
  CacheLayers layers;
  if (specs.empty()) return layers;
  const int64_t exact = most_exact_bytes(specs, options.dtype, config.block_size);
  int64_t code_bytes = 0;
  for (size_t i = 0; config.quantized && i < specs.size(); ++i) {
    const CodedBlock coded(specs[i], options.dtype, config.quantized->key[i],
                           config.quantized->value[i]);
    code_bytes = std::max(code_bytes, coded.bytes());
  }
  const auto num_layers = static_cast<int64_t>(specs.size());
  config.resolve(num_layers, exact, code_bytes, memory.allocator);
  std::vector<PagedSize> sizes;
  const auto add = [&](int64_t bytes, int64_t blocks, const char* what) {
    sizes.push_back({static_cast<size_t>(bytes), of_all_layers(blocks, num_layers), what});
  };
  if (config.quantized) add(code_bytes, config.num_blocks, "blocks of codes");
  add(exact, config.quantized ? config.num_exact_blocks : config.num_blocks,
      config.quantized ? "exact blocks" : "blocks");
  std::ranges::sort(sizes, {}, &PagedSize::bytes);
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
