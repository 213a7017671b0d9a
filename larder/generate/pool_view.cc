#include "larder/generate/pool_view.h"

#include "larder/cache/shared_blocks.h"
#include "larder/generate/engine.h"

namespace larder {
namespace {

// Of a quantized pool the blocks of codes are counted; one that lacks exact blocks refuses steps.
class PagedView final : public PoolView {
 public:
  PagedView(const Cache& cache, const PagedBlocks& pool, const PrefixCache* prefixes)
      : cache_(cache), pool_(pool.pool(0)), prefixes_(prefixes) {}

  int64_t num_blocks() const override { return pool_.num_blocks(); }
  int64_t num_free() const override {
    return pool_.num_free() + (prefixes_ ? prefixes_->reclaimable() : 0);
  }
  int64_t blocks_for(int64_t len) const override {
    int64_t blocks = 0;
    for (int32_t l = 0; l < cache_.num_layers(); ++l)
      blocks += cache_.layer(l).blocks_of(len, kStep);
    return blocks;
  }

 private:
  static constexpr int64_t kStep = 512;  // tokens of a row that a step feeds at most

  const Cache& cache_;
  const BlockPool& pool_;
  const PrefixCache* const prefixes_;
};

}  // namespace

std::unique_ptr<PoolView> view_of_pool(const Cache& cache, const PrefixCache* prefixes) {
  const PagedBlocks* const pool = paged_pool_of(cache);
  if (pool == nullptr) return std::make_unique<UnboundedPool>();
  return std::make_unique<PagedView>(cache, *pool, prefixes);
}

}  // namespace larder
