// The sources of an encoder-decoder model's rows, which go through the encoder before the decoder's
// first step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "larder/generate/session.h"
#include "larder/generate/step_plan.h"

namespace larder {

class Sources {
 public:
  // Cache row `slot` reads `ids`, which must outlive this.
  void add(int32_t slot, std::span<const int32_t> ids) { rows_.push_back({slot, ids}); }

  bool left() const { return next_ < rows_.size(); }
  // Encodes the next whole sources, as many as have `chunk` tokens together, at least one. When it
  // throws, nothing has changed.
  void encode_next(Session& session, int64_t chunk);

  int64_t tokens_encoded() const;  // of the sources that have been through the encoder

 private:
  struct Row {
    int32_t slot;
    std::span<const int32_t> ids;
  };
  std::vector<Row> rows_;
  size_t next_ = 0;
  StepPlan plan_;
};

}  // namespace larder
