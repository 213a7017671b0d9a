#include "larder/generate/step_plan.h"

namespace larder {

void StepPlan::reserve(size_t rows, size_t tokens) {
  q_start_.reserve(rows + 1);
  logit_start_.reserve(rows + 1);
  slot_.reserve(rows);
  ids_.reserve(tokens);
  logit_rows_.reserve(tokens);
  position_.reserve(tokens);
}

void StepPlan::clear() {
  slot_.clear();
  ids_.clear();
  logit_rows_.clear();
  position_.clear();
  q_start_.assign(1, 0);
  logit_start_.assign(1, 0);
}

void StepPlan::add(int32_t slot, std::span<const int32_t> ids, int64_t position, LogitsOf logits,
                   std::span<const int32_t> more) {
  const auto first = static_cast<int32_t>(ids_.size());
  const auto count = static_cast<int32_t>(ids.size() + more.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ids_.insert(ids_.end(), more.begin(), more.end());
  for (int32_t i = 0; i < count; ++i) {
    position_.push_back(position + i);
    if (logits == LogitsOf::kAll || (logits == LogitsOf::kLast && i + 1 == count))
      logit_rows_.push_back(first + i);
  }
  slot_.push_back(slot);
  q_start_.push_back(static_cast<int32_t>(ids_.size()));
  logit_start_.push_back(static_cast<int32_t>(logit_rows_.size()));
}

Step StepPlan::step(bool tentative) const {
  return {batch(),  static_cast<int32_t>(tokens()), q_start_.data(), position_.data(), slot_.data(),
          tentative};
}

}  // namespace larder
