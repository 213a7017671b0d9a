#include "larder/cache/paged_pool.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/coded_block.h"

namespace larder {
namespace {

constexpr const char* kWhat = "cache_config";
constexpr int64_t kPrefillStep = 512;  // what a row may hold exact beside its residual

// Blocks of all layers, as a pool numbers them.
int32_t of_all_layers(int64_t blocks, int64_t num_layers) {
  const int64_t all = checked_mul(blocks, num_layers);
  if (all > INT32_MAX) {
    fail(kWhat, ": a pool of ", blocks, " blocks for each of ", num_layers,
         " layers; all together must be at most ", INT32_MAX);
  }
  return static_cast<int32_t>(all);
}

// Of the biggest block of a layer.
struct BlockBytes {
  int64_t exact = 0, codes = 0;
};

BlockBytes block_bytes(const PagedConfig& config, std::span<const LayerSpec> specs, DType dtype) {
  BlockBytes most;
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t token =
        checked_mul(checked_mul(2 * element, specs[i].num_kv_heads), specs[i].head_dim);
    most.exact = std::max(most.exact, checked_mul(token, config.block_size));
    if (!config.quantized) continue;
    const CodedBlock coded(specs[i], dtype, config.quantized->key[i], config.quantized->value[i]);
    most.codes = std::max(most.codes, coded.bytes());
  }
  return most;
}

int64_t bytes_of_share(double share, const Allocator& allocator) {
  const size_t left = allocator.left();
  if (left == Allocator::kUnlimited)
    fail(kWhat, ": pool_share ", share, " is of a memory limit, and there is none");
  return static_cast<int64_t>(static_cast<double>(left) * share);
}

// Fills in the numbers of blocks that the settings give as bytes or as a share.
void resolve(PagedConfig& config, int64_t num_layers, const BlockBytes& bytes,
             const Allocator& allocator) {
  if (config.pool_share) config.pool_bytes = bytes_of_share(*config.pool_share, allocator);
  constexpr int64_t kPart = 4;  // rows of a few blocks of codes each have exact ones as well
  int64_t& exact_blocks = config.num_exact_blocks;
  if (config.pool_bytes) {
    const int64_t a_block =
        config.quantized ? bytes.codes + (exact_blocks > 0 ? 0 : bytes.exact / kPart) : bytes.exact;
    const int64_t fixed = exact_blocks * num_layers * (config.quantized ? bytes.exact : 0);
    config.num_blocks =
        std::max<int64_t>(0, *config.pool_bytes - fixed) / checked_mul(num_layers, a_block);
    if (config.num_blocks < 1) {
      fail_as(ErrorKind::kNoRoom, "a paged pool of ", *config.pool_bytes,
              " bytes holds no block of ", num_layers, " layers of ", a_block, " bytes");
    }
  }
  if (!config.quantized || exact_blocks > 0) return;
  // A row holds at most its residual, a block that is not full, and a step exact.
  const int64_t one_row =
      (config.quantized->residual_length + kPrefillStep) / config.block_size + 2;
  exact_blocks = std::max(config.num_blocks / kPart, config.pool_bytes ? 1 : one_row);
}

}  // namespace

PagedPool plan_paged_pool(const CacheOptions& options, std::span<const LayerSpec> specs,
                          const Allocator& allocator) {
  PagedPool pool{read_paged_config(options, specs), {}};
  PagedConfig& config = pool.config;
  const auto num_layers = static_cast<int64_t>(specs.size());
  const BlockBytes bytes = block_bytes(config, specs, options.dtype);
  resolve(config, num_layers, bytes, allocator);
  const auto add = [&](int64_t size, int64_t blocks, const char* what) {
    pool.sizes.push_back({static_cast<size_t>(size), of_all_layers(blocks, num_layers), what});
  };
  if (config.quantized) {
    add(bytes.codes, config.num_blocks, "blocks of codes");
    add(bytes.exact, config.num_exact_blocks, "exact blocks");
  } else {
    add(bytes.exact, config.num_blocks, "blocks");
  }
  std::ranges::sort(pool.sizes, {}, &PagedSize::bytes);
  return pool;
}

}  // namespace larder
