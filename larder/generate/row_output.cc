#include "larder/generate/row_output.h"

#include "larder/base/error.h"

namespace larder {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
    default:
      return "";
  }
}

namespace {

// New tokens that have their places ahead; a row that runs longer grows. (A model without a context
// limit sets none to a row either.)
constexpr int64_t kMostExpected = 1 << 20;

}  // namespace

RowOutput::RowOutput(std::vector<int32_t> prompt, int64_t limit, const Request& request,
                     const ModelInfo& info, const MakeTokenText& make_text, SamplerScratch& scratch)
    : ids_(std::move(prompt)),
      prompt_length_(ids_.size()),
      limit_(limit),
      eos_(request.eos_token_ids),
      sampler_(request.sampling,
               SamplerRow{static_cast<size_t>(info.vocab_size), prompt_length_, eos_, 0}, scratch),
      text_(make_text ? make_text(ids_) : nullptr),
      stops_(request.stop_strings) {
  const auto expected = static_cast<size_t>(std::min(limit, kMostExpected));
  ids_.reserve(prompt_length_ + expected);
  result_.output_ids.reserve(expected);
  if (limit_ == 0) result_.finish_reason = FinishReason::kLength;
}

int32_t RowOutput::choose(std::span<float> logits, std::span<const int32_t> more) {
  const size_t known = ids_.size();
  ids_.insert(ids_.end(), more.begin(), more.end());
  try {
    const int32_t id = sampler_.next(logits, ids_);
    ids_.resize(known);
    return id;
  } catch (...) {
    ids_.resize(known);
    throw;
  }
}

void RowOutput::choose_behind(std::span<float> logits, std::span<const int32_t> guesses,
                              std::vector<int32_t>& chosen) {
  chosen.clear();
  const size_t vocab = logits.size() / (guesses.size() + 1);
  for (size_t i = 0; i <= guesses.size(); ++i) {
    chosen.push_back(choose(logits.subspan(i * vocab, vocab), chosen));
    if (i < guesses.size() && (chosen.back() != guesses[i] || is_end(chosen.back()))) return;
  }
}

void RowOutput::take(int32_t id, Show show) {
  LARDER_ASSERT(running());
  ids_.push_back(id);
  result_.output_ids.push_back(id);
  bool stopped = false;
  std::string_view shown;
  std::string piece;
  if (text_) {
    piece = text_->push(id);
    const StopMatcher::Shown found = stops_.feed(piece);
    shown = found.text;
    stopped = found.stopped;
    result_.text.append(shown);
  }
  const bool more = show(id, shown);
  if (is_end(id) || stopped) return finish(FinishReason::kStop, show);
  if (!more) return finish(FinishReason::kCancelled, show);
  if (new_tokens() >= limit_) finish(FinishReason::kLength, show);
}

void RowOutput::finish(FinishReason reason, Show show) {
  LARDER_ASSERT(running());
  result_.finish_reason = reason;
  if (!text_) return;
  const auto give = [&](const StopMatcher::Shown& found) {
    const bool own_end = reason == FinishReason::kStop || reason == FinishReason::kLength;
    if (found.stopped && own_end) result_.finish_reason = FinishReason::kStop;
    if (found.text.empty()) return;
    result_.text.append(found.text);
    show(-1, found.text);
  };
  give(stops_.feed(text_->finish()));
  give(stops_.finish());
}

}  // namespace larder
