#include "larder/cache/padded_encoder_decoder.h"

#include "larder/base/error.h"

namespace larder {

PaddedEncoderDecoder::PaddedEncoderDecoder(Cache& cache, const Exec& exec, Allocator& allocator,
                                           std::vector<int64_t> pads)
    : has_cross_(cache.num_cross() > 0),
      self_(cache, exec, allocator, std::move(pads)),
      cross_(cache, exec, allocator, {}, PaddedSide::kCross) {}

KeyValues PaddedEncoderDecoder::update(PaddedSide side, int32_t layer, const TensorView& keys,
                                       const TensorView& values,
                                       std::optional<int64_t> cache_position) {
  PaddedCache& edge = side == PaddedSide::kSelf ? self_ : cross_;
  return edge.update(layer, keys, values, cache_position);
}

void PaddedEncoderDecoder::reset() {
  self_.reset();
  cross_.reset();
}

// The cache moves the rows of all its layers at once, so all must have them.
template <class Operation>
void PaddedEncoderDecoder::on_both(const Operation& operation) {
  if (!has_cross_) return operation(self_);
  if (self_.batch() != cross_.batch())
    fail("the decoder's layers have ", self_.batch(), " rows and the cross layers ", cross_.batch(),
         "; update both before rows move");
  operation(self_);
  operation(cross_);
}

void PaddedEncoderDecoder::reorder_cache(std::span<const int32_t> beam_idx) {
  on_both([&](PaddedCache& side) { side.reorder_cache(beam_idx); });
}

void PaddedEncoderDecoder::batch_select_indices(std::span<const int32_t> indices) {
  on_both([&](PaddedCache& side) { side.batch_select_indices(indices); });
}

void PaddedEncoderDecoder::batch_repeat_interleave(int64_t repeats) {
  on_both([&](PaddedCache& side) { side.batch_repeat_interleave(repeats); });
}

}  // namespace larder
