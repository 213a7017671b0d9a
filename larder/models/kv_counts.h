// What a layer of each cache kind holds from step to step, by lengths alone: so that a plan walks
// through the steps of a long generation without a byte of keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/cache/cache.h"
#include "larder/cache/paged_blocks.h"
#include "larder/cache/tiered_blocks.h"
#include "larder/tensor/shape.h"

namespace larder {

// Tokens that a step adds to one cache row.
struct RowStep {
  int32_t row = 0;
  int64_t count = 0;
};

// Stands for PagedBlocks: how many of its blocks are taken.
class PoolCounts {
 public:
  explicit PoolCounts(std::span<const PagedSize> sizes);
  // Throws Error(kNoRoom), as the pool does.
  void take(int64_t block_bytes, int64_t count);
  void give(int64_t block_bytes, int64_t count);

  struct Size {
    PagedSize of;
    int64_t taken = 0, most_taken = 0;
  };
  std::span<const Size> sizes() const { return sizes_; }  // smallest first

 private:
  Size& size_for(int64_t block_bytes);

  std::vector<Size> sizes_;
};

// Stands for a layer of larder/cache: after the same steps it counts the blocks that the layer
// would hold. Sizes of blocks are those of the layers' own layouts; when a row takes or gives back
// one is said here a second time, and a test compares every kind with its layer.
class LayerCounts {
 public:
  virtual ~LayerCounts() = default;
  // From here on blocks come from the pool, which must outlive this.
  void draw_from(PoolCounts& pool) { pool_ = &pool; }
  // As the layer's reserve(). Gives the most bytes held on the way.
  int64_t reserve(std::span<const RowStep> step);
  virtual void commit(std::span<const RowStep> step) = 0;
  virtual int64_t step_limit(int32_t /*row*/) const { return INT64_MAX; }
  // Working memory of the last step beside the blocks (tag "scratch"), which layers share.
  virtual int64_t flush_scratch() const { return 0; }

  int64_t bytes() const { return bytes_; }
  const BlockCounts& blocks() const { return blocks_; }

 protected:
  void take(int64_t block_bytes, int64_t count = 1);
  void give(int64_t block_bytes, int64_t count = 1);

 private:
  virtual void reserve_blocks(std::span<const RowStep> step) = 0;

  PoolCounts* pool_ = nullptr;
  BlockCounts blocks_;
  int64_t bytes_ = 0, most_ = 0;
};

// How a DenseLayer is cut.
struct DenseCut {
  int64_t token_bytes = 0, block_size = 0;
  int64_t window = 0, rollback = 0;  // gives back blocks behind them; 0: keeps all
};
std::unique_ptr<LayerCounts> count_dense(const DenseCut& cut);

// How a SlidingLayer is cut.
struct RingCut {
  int64_t token_bytes, capacity, page;
  bool bounded;  // takes all pages at once
};
std::unique_ptr<LayerCounts> count_ring(const RingCut& cut);

// What a LarderQuantizedLayer is made of.
struct CodedCut {
  int64_t coded_bytes, exact_bytes;  // of a block
  int64_t residual_length, window, rollback;
};
std::unique_ptr<LayerCounts> count_coded(const CodedCut& cut);

// For a layer with the quantizers of transformers; null for any other.
std::unique_ptr<LayerCounts> count_quantized(const CacheLayer& layer);

// Row `row` of what is kept a row, which grows with the rows.
template <class Row>
Row& row_at(std::vector<Row>& rows, const RowStep& step) {
  const auto index = static_cast<size_t>(step.row);
  if (index >= rows.size()) rows.resize(index + 1);
  return rows[index];
}

// Counts for the layers of one cache.
struct CacheCounts {
  // Of the attention layers in their order, equal layers sharing one.
  std::vector<std::unique_ptr<LayerCounts>> kinds;
  std::vector<size_t> kind_of_layer;
  bool offloaded = false;
  std::unique_ptr<PoolCounts> pool;  // null: blocks are the allocator's. Else nothing is shared
  // The state layers: how many attention layers stand before one, and what it takes for a row.
  struct State {
    size_t before = 0;
    int64_t row_bytes = 0;
  };
  std::vector<State> states;
  int64_t cross_block_bytes = 0;  // of a block of all cross layers
};
constexpr int64_t kGrowingBlock = 64;  // tokens a block of every kind that grows

// What a cache is to hold at last.
struct CountedRows {
  int64_t batch = 1, tokens = 0;
};

// For the registry's kind `name`, options as CacheRegistry::make has them, but for max_cache_len,
// which follows from `rows`. Throws as it does, and kUnsupported for a kind that has no counts
// here.
CacheCounts count_layers(std::string_view name, std::span<const LayerSpec> specs,
                         const CacheOptions& options, const CountedRows& rows);

}  // namespace larder
