// What one row gives: its ids, its text as far as it may be shown, and why it ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/generate/request.h"
#include "larder/generate/sampler.h"
#include "larder/generate/stop_strings.h"
#include "larder/tensor/thread_pool.h"

namespace larder {

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kDeadline, kError };
constexpr size_t kNumFinishReasons = 6;
// "stop", "length", "cancelled", "deadline", "error"; "" while running
std::string_view finish_reason_name(FinishReason reason);

struct Result {
  std::vector<int32_t> output_ids;  // new tokens only
  std::string text;  // what they add to the text of the prompt; empty without a TokenText
  FinishReason finish_reason = FinishReason::kNone;
};

// Turns one row's ids into text as they come. push() may hold back what is not a whole character
// yet; finish() gives it.
class TokenText {
 public:
  virtual ~TokenText() = default;
  virtual std::string push(int32_t id) = 0;
  virtual std::string finish() = 0;
};
// Makes the TokenText of a row whose prompt is given.
using MakeTokenText =
    std::function<std::unique_ptr<TokenText>(std::span<const int32_t> prompt_ids)>;

// A row between its prompt and its end. Ends of the request's own come first: any of its end
// tokens, a stop string, then the length. Allocates nothing in take() while there is no text. May
// be moved; the scratch must outlive it.
class RowOutput {
 public:
  // Shows a new token and the text that may be shown because of it; once more with id -1 for each
  // text that was held back until the row's end. False cancels the row.
  using Show = FunctionRef<bool(int32_t id, std::string_view text)>;

  // `prompt`: what the decoder is fed first; `limit`: new tokens at most. A row of limit 0 has
  // ended. Throws Error for bad words outside the vocabulary.
  RowOutput(std::vector<int32_t> prompt, int64_t limit, const Request& request,
            const ModelInfo& info, const MakeTokenText& make_text, SamplerScratch& scratch);

  // The token that the request's sampler chooses behind ids() and `more`. Overwrites the logits.
  // Throws as Sampler::next, with nothing changed.
  int32_t choose(std::span<float> logits, std::span<const int32_t> more = {});
  // The same behind ids() and each of `guesses` for which the guess is what was chosen: what would
  // be chosen if they were fed one by one. `logits`: [guesses + 1, vocab_size]. Stops behind a
  // token that ends the row. When it throws, `chosen` has the tokens before.
  void choose_behind(std::span<float> logits, std::span<const int32_t> guesses,
                     std::vector<int32_t>& chosen);
  // Needs: running(). The row may have ended after it. What `show` throws comes through; the token
  // has been taken then.
  void take(int32_t id, Show show);
  // Needs: running(). Ends the row and shows what was held back: an unfinished character, or text
  // that might have become a stop string; the reason is "stop" when it did.
  void finish(FinishReason reason, Show show);
  // Ends the row with the reason "error", whatever it had before; shows nothing more.
  void fail() { result_.finish_reason = FinishReason::kError; }

  bool running() const { return result_.finish_reason == FinishReason::kNone; }
  const Result& result() const { return result_; }
  const std::vector<int32_t>& ids() const { return ids_; }  // prompt and output
  int64_t prompt_length() const { return static_cast<int64_t>(prompt_length_); }
  int64_t length() const { return static_cast<int64_t>(ids_.size()); }
  int64_t new_tokens() const { return static_cast<int64_t>(result_.output_ids.size()); }
  int64_t limit() const { return limit_; }

 private:
  bool is_end(int32_t id) const { return std::ranges::find(eos_, id) != eos_.end(); }

  std::vector<int32_t> ids_;
  size_t prompt_length_;
  int64_t limit_;
  std::vector<int32_t> eos_;
  Sampler sampler_;
  std::unique_ptr<TokenText> text_;
  StopMatcher stops_;
  Result result_;
};

}  // namespace larder
