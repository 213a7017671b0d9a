#include "larder/cache/shared_blocks.h"

#include "larder/base/error.h"

namespace larder {
namespace {

PagedBlocks* pool_of(const CacheLayer& layer) {
  BlockSource* source = layer.block_source();
  return source == nullptr ? nullptr : source->as_paged();
}

}  // namespace

PagedBlocks* paged_pool_of(const Cache& cache) {
  for (int32_t l = 0; l < cache.num_layers(); ++l)
    if (PagedBlocks* const pool = pool_of(cache.layer(l))) return pool;
  return nullptr;
}

std::string why_no_shared_blocks(const Cache& cache) {
  if (cache.num_layers() == 0) return "the cache has no layers";
  if (cache.num_cross() > 0) return "cross layers hold a source, not a prefix";
  for (int32_t l = 0; l < cache.num_layers(); ++l) {
    const CacheLayer& layer = cache.layer(l);
    if (const_cast<CacheLayer&>(layer).as_state() != nullptr)
      return str("layer ", l, " keeps a recurrent state, which has no blocks to share");
    if (pool_of(layer) == nullptr)
      return str("layer ", l, " takes no blocks from a pool, as the cache \"paged\" does");
    if (cache.kv(l).shared_block_size() == 0)
      return str("blocks of layer ", l, " (", layer.format(), ") change after they are full");
  }
  return "";
}

PagedBlocks& shared_pool(const Cache& cache, std::string_view what) {
  const std::string reason = why_no_shared_blocks(cache);
  if (!reason.empty()) fail_as(ErrorKind::kUnsupported, "no ", what, ": ", reason);
  return *paged_pool_of(cache);
}

}  // namespace larder
