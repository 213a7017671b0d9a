// The KV cache of a model: one CacheLayer a layer, and the operations that act on all of them or on
// none.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "larder/cache/layer.h"

namespace larder {

struct CacheOptions {
  DType dtype = DType::kF32;  // f32, f16 or bf16: what K and V are stored as
  int64_t max_cache_len = 0;  // tokens a row, for the kinds of fixed size
};

// Rows are sequences of different lengths without padding; row r of every layer is the same
// sequence. Move-only; the allocator must outlive it. Not thread-safe: one generation, one cache.
class Cache {
 public:
  explicit Cache(std::vector<std::unique_ptr<CacheLayer>> layers) : layers_(std::move(layers)) {}

  // Takes everything that the step will need in all layers, or nothing in any (then it throws).
  // After it nothing fails.
  void begin(const Step& step);
  // Ends a tentative step: the first count[b] tokens of each row become part of it.
  void accept(const Step& step, std::span<const int32_t> count);
  // Takes back a step that was begun, committed or not.
  void cancel(const Step& step) noexcept;

  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }
  CacheLayer& layer(int32_t index) { return *layers_[static_cast<size_t>(index)]; }
  const CacheLayer& layer(int32_t index) const { return *layers_[static_cast<size_t>(index)]; }

  int32_t batch() const { return layers_.empty() ? 0 : layers_[0]->batch(); }
  int64_t seq_len(int32_t row) const;  // 0 for a row that does not exist
  int64_t max_len() const;             // -1 = unbounded

  // Row i becomes old row source[i], in every layer (reorder_cache, batch_select_indices,
  // batch_repeat_interleave). An index outside 0..batch()-1 is refused.
  void select_rows(std::span<const int32_t> source);
  // Row r keeps its first len[r] tokens; a longer len keeps all. One entry a row.
  void crop(std::span<const int64_t> len);
  void reset() noexcept;

 private:
  void apply_to_all(const auto& prepare);

  std::vector<std::unique_ptr<CacheLayer>> layers_;
};

}  // namespace larder
