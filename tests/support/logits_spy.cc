#include "tests/support/logits_spy.h"

#include "tests/support/logits_run.h"

namespace larder::test {

TensorView LogitsSpy::forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                              std::span<const int32_t> logit_rows, Cache& cache,
                              AttentionKind attention) const {
  const TensorView logits = model_->forward(exec, step, ids, logit_rows, cache, attention);
  const auto vocab = static_cast<size_t>(info().vocab_size);
  size_t next = 0;
  for (int32_t b = 0; b < step.batch; ++b) {
    Ids& history = histories_[&cache][step.slot[b]];
    const int64_t first = step.q_len(b) > 0 ? step.position[step.q_start[b]] : 0;
    if (first == 0) history.clear();
    const bool known = static_cast<int64_t>(history.size()) == first;
    for (int32_t i = step.q_start[b]; i < step.q_start[b + 1]; ++i) {
      history.push_back(ids[static_cast<size_t>(i)]);
      if (next == logit_rows.size() || logit_rows[next] != i) continue;
      if (known) look(history, {logits.as<float>() + next * vocab, vocab});
      ++next;
    }
    // Which guesses stand is not told.
    if (!known || step.tentative) history.clear();
  }
  return logits;
}

void LogitsSpy::look(const Ids& history, std::span<const float> logits) const {
  const auto [entry, is_new] = seen_.try_emplace(history, logits.begin(), logits.end());
  if (is_new) return;
  ++compared_;
  std::string where;
  if (!same_bits(entry->second, logits, where)) ++different_;
}

}  // namespace larder::test
