// Generating tokens for one batch of prompts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "larder/generate/context_shift.h"
#include "larder/generate/request.h"
#include "larder/generate/row_output.h"
#include "larder/generate/session.h"
#include "larder/generate/sources.h"
#include "larder/generate/speculation.h"
#include "larder/generate/step_plan.h"

namespace larder {

// What the callback sees: a new token and the text that may be shown because of it. At a row's end
// one more event with id -1 gives the text that was held back, if there is some. Views are valid
// during the call.
struct TokenEvent {
  int32_t row = 0;
  int32_t id = -1;
  std::string_view text;
};

struct GenerationOptions {
  std::function<bool(const TokenEvent&)> on_token;  // false cancels the row; must not throw
  std::function<bool()> interrupted;                // asked before each step; true cancels all rows
  MakeTokenText make_text;                          // none: ids only
  int32_t prefill_chunk = 512;                      // most prompt tokens a step
  std::shared_ptr<Drafter> drafter;                 // none: one new token a row and step
  // What goes when a row's context is full; none: the row ends there. Not with a drafter.
  std::optional<ContextShiftParams> context_shift;
};

// Runs the rows of one batch to their ends. Row r uses cache row r; the session's cache must be
// empty, or hold what the requests call cached_tokens. Rows are packed, not padded: a row that has
// ended costs nothing, and every row's logits are those it would have alone.
class Generation {
 public:
  // Checks all requests before anything happens; throws one Error that names the request and the
  // field. An empty prompt starts from bos_token_id where the model has one. max_new_tokens 0 gives
  // no token and runs nothing.
  Generation(Session& session, std::vector<Request> requests, GenerationOptions options = {});
  ~Generation();

  // One forward: sources of an encoder-decoder model, or a chunk of prompts, or for every row that
  // still runs one token, or with a drafter those guesses that stand and one token more. False when
  // all rows have ended. When it throws (out of memory, say), tokens and cache are as they were,
  // and it may be called again; a row whose context was shifted before stays so, and goes on
  // from there.
  bool step();
  void run() {
    while (step()) {
    }
  }

  size_t batch() const { return rows_.size(); }
  const Result& result(size_t row) const;
  const std::vector<int32_t>& prompt_ids(
      size_t row) const;  // with the bos that an empty prompt got; or the source
  const std::vector<int32_t>& ids(size_t row) const;  // prompt and output; the cache lacks the last
  std::vector<int32_t> context_ids(size_t row) const;  // those of ids() that no shift has dropped
  int64_t prompt_tokens() const;                       // of all rows
  int64_t prompt_tokens_fed() const;                   // those that have been through the model
  int64_t new_tokens() const;
  int64_t drafted_tokens() const { return drafted_; }    // guesses that were verified
  int64_t accepted_tokens() const { return accepted_; }  // those of them that stood
  bool prefilled() const;  // every row has its first token, or has ended

 private:
  struct Row;
  void add_row(Request& request);
  bool any_running() const;
  void check_drafter();
  void draft();
  void plan_step();
  void plan_next();
  bool make_room(int32_t index);
  void choose(const Step& step, const TensorView& logits);
  void choose_of(const Step& step, int32_t b, Row& row, const TensorView& logits);
  void take_chosen(const Step& step);
  void take_token(int32_t index, int32_t id);
  void finish(Row& row, int32_t index, FinishReason reason);
  bool show(int32_t index, int32_t id, std::string_view text);

  Session& session_;
  GenerationOptions options_;
  SamplerScratch sampler_scratch_;
  std::vector<std::unique_ptr<Row>> rows_;
  Sources sources_;
  StepPlan plan_;
  std::vector<int32_t> count_;  // of each row, kept by a tentative step
  std::vector<Draft> drafts_;   // of the rows that run, in their order; empty without a drafter
  std::unique_ptr<ContextShifter> shifter_;  // null: a full context is a row's end
  bool decoding_ = false;                    // the step is one of next tokens, not of prompts
  int64_t drafted_ = 0, accepted_ = 0;
};

// The common case: one prompt, run to its end.
Result generate(Session& session, Request request, GenerationOptions options = {});

}  // namespace larder
