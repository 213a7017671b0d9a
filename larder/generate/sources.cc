#include "larder/generate/sources.h"

namespace larder {

void Sources::encode_next(Session& session, int64_t chunk) {
  plan_.clear();
  size_t end = next_;
  while (end < rows_.size()) {
    const Row& row = rows_[end];
    const bool fits = plan_.tokens() + static_cast<int64_t>(row.ids.size()) <= chunk;
    if (!fits && !plan_.empty()) break;
    plan_.add(row.slot, row.ids, 0, LogitsOf::kNone);
    ++end;
  }
  if (plan_.empty()) return;
  session.encode(plan_.step(), plan_.ids());
  next_ = end;
}

int64_t Sources::tokens_encoded() const {
  int64_t count = 0;
  for (size_t i = 0; i < next_; ++i) count += static_cast<int64_t>(rows_[i].ids.size());
  return count;
}

}  // namespace larder
