// A step being put together, row by row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "larder/tensor/step.h"

namespace larder {

// Which tokens of a row shall have logits.
enum class LogitsOf : uint8_t { kNone, kLast, kAll };

// The lists that a step points to; sized once, then nothing allocates.
class StepPlan {
 public:
  void reserve(size_t rows, size_t tokens);
  void clear();
  // `ids` and `more` go behind what cache row `slot` holds: the first of them is token `position`
  // of the row.
  void add(int32_t slot, std::span<const int32_t> ids, int64_t position, LogitsOf logits,
           std::span<const int32_t> more = {});

  bool empty() const { return slot_.empty(); }
  int32_t batch() const { return static_cast<int32_t>(slot_.size()); }
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  int32_t slot(int32_t b) const { return slot_[static_cast<size_t>(b)]; }
  std::span<const int32_t> ids() const { return ids_; }
  // For Model::forward. The logits of the step's row b are rows [logit_start(b), logit_start(b +
  // 1)) of what it gives.
  std::span<const int32_t> logit_rows() const { return logit_rows_; }
  int32_t logit_start(int32_t b) const { return logit_start_[static_cast<size_t>(b)]; }

  // Valid until the plan changes.
  Step step(bool tentative = false) const;

 private:
  std::vector<int32_t> q_start_ = {0}, slot_, ids_, logit_rows_, logit_start_ = {0};
  std::vector<int64_t> position_;
};

}  // namespace larder
