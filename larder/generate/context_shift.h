// Going on where the context is full: old tokens leave the cache, the newer ones move up.
#pragma once

#include <cstdint>
#include <vector>

#include "larder/generate/session.h"

namespace larder {

// When a row's context is full, its tokens [keep, keep + discard) go.
struct ContextShiftParams {
  int64_t keep = 0, discard = 0;
};

// Tokens that a row of the session can hold: max_position_embeddings, or the cache's capacity where
// that is less.
int64_t context_length(Session& session);

// Half of the tokens that are not kept, at least one.
int64_t default_discard(int64_t keep, int64_t context);

// The shifts of one generation. The session must outlive it.
class ContextShifter {
 public:
  // Throws Error for numbers that leave no room, and kUnsupported where the model's keys cannot be
  // moved (no rope, or one whose angles depend on the length; encoder-decoders) or a layer of the
  // cache cannot drop tokens.
  ContextShifter(Session& session, const ContextShiftParams& params);

  int64_t keep() const { return params_.keep; }
  int64_t discard() const { return params_.discard; }
  bool full(int64_t row_len) const { return row_len >= context_; }
  // Shifts a full row in all layers, or in none: false where a layer lacks tokens that the shift
  // needs (a cache that was converted or loaded). Throws OutOfMemory, and then nothing has changed.
  bool shift(int32_t row);

 private:
  Session& session_;
  ContextShiftParams params_;
  int64_t context_;
  std::vector<std::vector<float>> angles_;  // [2, half] a layer: cos, then sin, of -discard
  std::vector<ContextShift> shifts_;        // one a layer
};

}  // namespace larder
