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
#include "larder/cache/tiered_blocks.h"

namespace larder {

// Tokens that a step adds to one cache row.
struct RowStep {
  int32_t row = 0;
  int64_t count = 0;
};

// Stands for a layer of larder/cache: after the same steps it counts the blocks that the layer
// would hold. Sizes of blocks are those of the layers' own layouts; when a row takes or gives back
// one is said here a second time, and a test compares every kind with its layer.
class LayerCounts {
 public:
  virtual ~LayerCounts() = default;
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

  BlockCounts blocks_;
  int64_t bytes_ = 0, most_ = 0;
};

// For a layer with the quantizers of transformers; null for any other.
std::unique_ptr<LayerCounts> count_quantized(const CacheLayer& layer);

// Rounded up.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Row `row` of what is kept a row, which grows with the rows.
template <class Row>
Row& row_at(std::vector<Row>& rows, const RowStep& step) {
  const auto index = static_cast<size_t>(step.row);
  if (index >= rows.size()) rows.resize(index + 1);
  return rows[index];
}

// Counts for the layers of one cache, equal layers sharing one.
struct CacheCounts {
  std::vector<std::unique_ptr<LayerCounts>> kinds;
  std::vector<size_t> kind_of_layer;
  bool offloaded = false;
};

// For the registry's kind `name`, options as CacheRegistry::make has them. Throws as it does, and
// kUnsupported for a kind that has no counts here.
CacheCounts count_layers(std::string_view name, std::span<const LayerSpec> specs,
                         const CacheOptions& options);

}  // namespace larder
