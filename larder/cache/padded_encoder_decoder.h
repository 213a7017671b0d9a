// The ecosystem's view of an encoder-decoder cache (EncoderDecoderCache): a padded edge over the
// decoder's own layers and one over the cross layers.
#pragma once

#include "larder/cache/padded.h"

namespace larder {

// Operations act on both sides, as transformers' do; crop on the decoder's own. Of the cross side
// all rows have sources of the same length: a padded edge has its padding on the left.
class PaddedEncoderDecoder {
 public:
  // pads: of the decoder's own side.
  PaddedEncoderDecoder(Cache& cache, const Exec& exec, Allocator& allocator,
                       std::vector<int64_t> pads = {});

  // As PaddedCache::update. Cross layers take a source once; until reset() a second one is refused.
  KeyValues update(PaddedSide side, int32_t layer, const TensorView& keys, const TensorView& values,
                   std::optional<int64_t> cache_position = std::nullopt);
  // For what a side keeps and says.
  const PaddedCache& side(PaddedSide side) const {
    return side == PaddedSide::kSelf ? self_ : cross_;
  }
  bool is_updated(int32_t layer) const { return cross_.get_seq_length(layer) > 0; }

  void crop(int64_t max_length) { self_.crop(max_length); }
  void reset();
  void reorder_cache(std::span<const int32_t> beam_idx);
  void batch_select_indices(std::span<const int32_t> indices);
  void batch_repeat_interleave(int64_t repeats);

 private:
  template <class Operation>
  void on_both(const Operation& operation);

  bool has_cross_;
  PaddedCache self_, cross_;
};

}  // namespace larder
