// The cache of a model: one CacheLayer a layer, and the operations that act on all of them or on
// none.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "larder/cache/layer.h"

namespace larder {

struct CacheOptions {
  DType dtype = DType::kF32;  // f32, f16 or bf16: what exact K and V are stored as
  int64_t max_cache_len = 0;  // tokens a row, for the kinds of fixed size
  int64_t rollback = 0;       // tokens that crop() may take back although a window has passed them
  std::string config = {};    // the kind's own settings: a JSON object, or empty
};

// Rows are sequences of different lengths without padding; row r of every layer is the same
// sequence. Move-only; the allocator must outlive it. Not thread-safe: one generation, one cache.
class Cache {
 public:
  // `cross`: layers that hold an encoder's output. They follow select_rows, reset, fork, save and
  // load, and take no part in steps and lengths.
  explicit Cache(std::vector<std::unique_ptr<CacheLayer>> layers,
                 std::vector<std::unique_ptr<CacheLayer>> cross = {})
      : layers_(std::move(layers)), cross_(std::move(cross)) {}

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
  // The layer as what it is. Needs: it is one.
  KVLayer& kv(int32_t index);
  const KVLayer& kv(int32_t index) const;
  StateLayer& state(int32_t index);
  int32_t num_cross() const { return static_cast<int32_t>(cross_.size()); }
  KVLayer& cross(int32_t index);
  const KVLayer& cross(int32_t index) const;

  int32_t batch() const { return layers_.empty() ? 0 : layers_[0]->batch(); }
  int64_t seq_len(int32_t row) const;  // 0 for a row that does not exist
  int64_t max_len() const;             // -1 = unbounded
  // Most tokens of a tentative step for the row; 0 where a step cannot be taken back.
  int64_t tentative_limit(int32_t row) const;
  // Most tokens of a step for the row that leave its bits as one token a step would; see
  // CacheLayer.
  int64_t step_limit(int32_t row) const;

  // Row i becomes old row source[i], in every layer (reorder_cache, batch_select_indices,
  // batch_repeat_interleave). An index outside 0..batch()-1 is refused.
  void select_rows(std::span<const int32_t> source);
  // Row r keeps its first len[r] tokens; a longer len keeps all. One entry a row.
  void crop(std::span<const int64_t> len);
  // See ContextShift. shifts[i] is layer i's; one row.
  void shift(int32_t row, std::span<const ContextShift> shifts);
  // Gives a row without tokens, or a new row, blocks that others also have; see KVLayer.
  struct SharedBlocks {
    int64_t first_block = 0;
    std::vector<BlockPtr> blocks;
    int64_t len = 0;  // tokens that the row has seen then
  };
  void adopt(int32_t row, std::span<const SharedBlocks> layers);
  void reset() noexcept;
  // A second cache with the same rows; shares every block until one of the two writes into it.
  Cache fork() const;
  // Puts another layer, which holds the same rows, in the place of layer `index` (conversion).
  void replace_layer(int32_t index, std::unique_ptr<CacheLayer> layer);

 private:
  using Layers = std::vector<std::unique_ptr<CacheLayer>>;
  template <class Prepare>
  void apply_to_all(std::initializer_list<const Layers*> lists, const Prepare& prepare);

  Layers layers_, cross_;
};

}  // namespace larder
