// The ecosystem's view of a cache: left-padded batches, positions in padded columns, whole tensors
// in and out. Inside, rows are ragged and packed; this edge keeps how many columns of each row are
// padding, and converts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "larder/cache/cache.h"

namespace larder {

struct KeyValues {
  Tensor keys, values;  // [batch, num_kv_heads, columns, head_dim] of the cache's dtype; zeros
                        // where nothing is kept
};

// Columns [begin, end) of a padded batch, of which a layer shows `count`, zeros behind `end`.
struct Columns {
  int64_t begin = 0, end = 0, count = 0;
};

// The layers that an edge shows: of an encoder-decoder model the decoder's own or those that keep
// the encoder's output (see PaddedEncoderDecoder).
enum class PaddedSide : uint8_t { kSelf, kCross };

// Methods bear the names that transformers gives them, and their meaning where that is right;
// docs/parity.md lists where it is not. A column is an index of the padded batch: row r has its
// first tokens from column pad(r) on. Borrows the cache, the exec and the allocator.
class PaddedCache {
 public:
  // pads: padding columns on the left of each row; empty = none.
  PaddedCache(Cache& cache, const Exec& exec, Allocator& allocator, std::vector<int64_t> pads = {},
              PaddedSide side = PaddedSide::kSelf);

  // keys, values: [batch, num_kv_heads, n, head_dim], any float dtype and strides. What lies in
  // padding columns is ignored. Gives what the layer keeps afterwards; a cache of fixed size gives
  // its whole capacity, and a sliding layer what it kept before and the new columns. Refuses a
  // batch that is not the cache's, a full cache, and a cache_position that is not the next column,
  // before any write.
  KeyValues update(int32_t layer, const TensorView& keys, const TensorView& values,
                   std::optional<int64_t> cache_position = std::nullopt);

  int64_t batch() const { return std::max<int64_t>(batch_, 0); }  // rows
  int64_t get_seq_length(int32_t layer = 0) const;                // columns, padding included
  // {kv_length, kv_offset} that the mask of the next q_len columns must have.
  std::pair<int64_t, int64_t> get_mask_sizes(int64_t q_len, int32_t layer) const;
  // Columns that the layer can keep; -1 = unbounded. Of a sliding layer: its window.
  int64_t get_max_cache_shape(int32_t layer = 0) const;
  int64_t pad(int32_t row) const;
  int64_t next_position(int32_t row,
                        int32_t layer = 0) const;  // of the next token: real tokens before it

  // What the layer keeps, as update gives it; nullopt while it holds nothing.
  std::optional<KeyValues> keys_values(int32_t layer) const;

  // max_length >= 0: the first max_length columns stay (0 empties). Negative: that many columns
  // less, at the least none. A length past the end changes nothing. Any integer has a defined
  // result (cases 3).
  void crop(int64_t max_length);
  void reset();
  void reorder_cache(std::span<const int32_t> beam_idx);  // one index a row
  void batch_select_indices(std::span<const int32_t> indices);
  void batch_repeat_interleave(int64_t repeats);

 private:
  KVLayer& kv(int32_t layer) const {
    return side_ == PaddedSide::kSelf ? cache_.kv(layer) : cache_.cross(layer);
  }
  void check_update(int32_t layer, const TensorView& keys, const TensorView& values,
                    std::optional<int64_t> cache_position) const;
  void select(std::span<const int32_t> source);
  Columns kept_columns(int32_t layer) const;
  KeyValues export_columns(int64_t batch, int32_t layer, const Columns& columns) const;
  std::optional<KeyValues> old_and_new(int32_t layer, const TensorView& keys,
                                       const TensorView& values) const;
  int64_t tokens(int32_t row, int64_t columns) const {
    return std::max<int64_t>(columns - pad(row), 0);
  }

  Cache& cache_;
  const Exec& exec_;
  Allocator& allocator_;
  PaddedSide side_;
  std::vector<int64_t> pads_;
  std::vector<int64_t> columns_;  // by layer
  int64_t batch_ = -1;            // -1 until the first update
};

}  // namespace larder
