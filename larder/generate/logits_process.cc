#include "larder/generate/logits_process.h"

#include <algorithm>
#include <array>
#include <limits>

namespace larder {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

void forbid(std::span<float> scores, int32_t id) {
  if (id >= 0 && static_cast<size_t>(id) < scores.size())
    scores[static_cast<size_t>(id)] = kRemoved;
}

void forbid_all(std::span<float> scores, std::span<const int32_t> ids) {
  for (const int32_t id : ids) forbid(scores, id);
}

}  // namespace

SamplerScratch::SamplerScratch(size_t vocab_size)
    : candidates_(vocab_size), weights_(vocab_size), stamps_(vocab_size) {}

void SamplerScratch::unmark_all() {
  if (++round_ != 0) return;
  std::fill(stamps_.begin(), stamps_.end(), 0u);
  round_ = 1;
}

float largest(std::span<const float> scores) {
  std::array<float, 8> lanes{};
  lanes.fill(kRemoved);
  size_t i = 0;
  for (; i + lanes.size() <= scores.size(); i += lanes.size())
    for (size_t lane = 0; lane < lanes.size(); ++lane)
      lanes[lane] = scores[i + lane] > lanes[lane] ? scores[i + lane] : lanes[lane];
  for (; i < scores.size(); ++i) lanes[0] = std::max(lanes[0], scores[i]);
  return *std::max_element(lanes.begin(), lanes.end());
}

void apply_repetition_penalty(std::span<float> scores, std::span<const int32_t> ids, double penalty,
                              SamplerScratch& scratch) {
  const auto factor = static_cast<float>(penalty);
  scratch.unmark_all();
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= scores.size() || !scratch.mark(id)) continue;
    float& score = scores[static_cast<size_t>(id)];
    score = score < 0 ? score * factor : score / factor;
  }
}

void apply_no_repeat_ngram(std::span<float> scores, std::span<const int32_t> ids, int64_t size) {
  if (size <= 0 || static_cast<uint64_t>(size) > ids.size()) return;
  const auto prefix = static_cast<size_t>(size) - 1;
  const auto recent = ids.last(prefix);
  for (size_t start = 0; start + prefix < ids.size(); ++start)
    if (std::equal(recent.begin(), recent.end(), ids.begin() + static_cast<ptrdiff_t>(start)))
      forbid(scores, ids[start + prefix]);
}

void apply_bad_words(std::span<float> scores, std::span<const int32_t> ids,
                     std::span<const std::vector<int32_t>> words,
                     std::span<const int32_t> eos_ids) {
  for (const auto& word : words) {
    if (word.empty() || word.size() - 1 > ids.size()) continue;
    if (word.size() == 1 && std::find(eos_ids.begin(), eos_ids.end(), word[0]) != eos_ids.end())
      continue;
    const auto recent = ids.last(word.size() - 1);
    if (std::equal(recent.begin(), recent.end(), word.begin())) forbid(scores, word.back());
  }
}

void apply_min_length(std::span<float> scores, int64_t length, int64_t min_length,
                      std::span<const int32_t> eos_ids) {
  if (length < min_length) forbid_all(scores, eos_ids);
}

void apply_min_new_tokens(std::span<float> scores, int64_t new_tokens, int64_t min_new_tokens,
                          std::span<const int32_t> eos_ids) {
  if (new_tokens < min_new_tokens) forbid_all(scores, eos_ids);
}

void apply_temperature(std::span<float> scores, double temperature) {
  const auto divisor = static_cast<float>(temperature);
  for (float& score : scores) score /= divisor;
}

}  // namespace larder
