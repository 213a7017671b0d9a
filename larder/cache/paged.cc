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

// The pool for these sizes; see PagedConfig for who says how many blocks there are.
std::shared_ptr<PagedBlocks> make_pool(const PagedConfig& config, std::vector<PagedSize> sizes,
                                       Allocator& allocator) {
  std::ranges::sort(sizes, {}, &PagedSize::bytes);
  int64_t blocks = 0;
  for (const PagedSize& size : sizes) blocks = std::max<int64_t>(blocks, size.num_blocks);
  if (blocks > INT32_MAX)
    fail("cache_config: num_blocks ", config.num_blocks, " makes too many blocks");
  return std::make_shared<PagedBlocks>(allocator, sizes);
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
  std::vector<CodedBlock> coded;
  int64_t code_bytes = 0;
  for (size_t i = 0; config.quantized && i < specs.size(); ++i) {
    coded.emplace_back(specs[i], options.dtype, config.quantized->key[i],
                       config.quantized->value[i]);
    code_bytes = std::max(code_bytes, coded.back().bytes());
  }
  const auto num_layers = static_cast<int64_t>(specs.size());
  config.resolve(num_layers, exact, code_bytes, memory.allocator);
  std::vector<PagedSize> sizes;
  const auto of_all = [&](int64_t blocks) {
    return static_cast<int32_t>(std::min<int64_t>(checked_mul(blocks, num_layers), INT32_MAX));
  };
  if (!config.quantized) {
    sizes = {{static_cast<size_t>(exact), of_all(config.num_blocks), "blocks"}};
  } else {
    sizes = {{static_cast<size_t>(code_bytes), of_all(config.num_blocks), "blocks of codes"},
             {static_cast<size_t>(exact), of_all(config.num_exact_blocks), "exact blocks"}};
  }
  const auto pool = make_pool(config, std::move(sizes), memory.allocator);
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
