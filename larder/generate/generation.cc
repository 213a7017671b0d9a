#include "larder/generate/generation.h"

#include <algorithm>
#include <limits>

#include "larder/base/error.h"

namespace larder {

struct Generation::Row {
  RowOutput output;
  std::vector<int32_t> given;   // the prompt, or the source of an encoder-decoder model
  int64_t fed = 0;              // of output.ids(), in the cache
  int64_t cached = 0;           // of those, there from the start
  int64_t dropped = 0;          // of those, gone again by context shifts
  std::vector<int32_t> chosen;  // by the step that runs

  bool running() const { return output.running(); }
  int64_t held() const { return fed - dropped; }  // by the cache
  bool in_prompt() const { return fed < output.prompt_length(); }
};

Generation::Generation(Session& session, std::vector<Request> requests, GenerationOptions options)
    : session_(session),
      options_(std::move(options)),
      sampler_scratch_(static_cast<size_t>(session.model().info().vocab_size)) {
  const bool shifts = options_.context_shift.has_value();
  check_requests(requests, session, options_.make_text != nullptr, shifts);
  if (options_.prefill_chunk < 1)
    fail("prefill_chunk ", options_.prefill_chunk, " must be at least 1");
  Drafter* const drafter = options_.drafter.get();
  if (shifts) {
    if (drafter)
      fail("a context shift cannot be combined with guesses (a draft model or prompt lookup)");
    shifter_ = std::make_unique<ContextShifter>(session, *options_.context_shift);
  }
  if (drafter) check_drafter();
  for (Request& request : requests) add_row(request);
  const int64_t chunk = std::min<int64_t>(options_.prefill_chunk, prompt_tokens());
  const auto most_chosen = static_cast<size_t>(1 + (drafter ? drafter->max_tokens() : 0));
  plan_.reserve(rows_.size(), std::max(rows_.size() * most_chosen, static_cast<size_t>(chunk)));
  for (const auto& row : rows_) row->chosen.reserve(most_chosen);
  count_.reserve(rows_.size());
  for (size_t r = 0; drafter && r < rows_.size(); ++r) {
    drafts_.push_back({static_cast<int32_t>(r), {}, 0, {}, 0});
    drafts_.back().tokens.reserve(most_chosen);
  }
}

Generation::~Generation() = default;

void Generation::add_row(Request& request) {
  const ModelInfo& config = session_.model().info();
  std::vector<int32_t> given = with_bos(request, config);
  std::vector<int32_t> prompt = decoder_prompt(request, given, config);
  const int64_t limit =
      new_token_limit(request, static_cast<int64_t>(prompt.size()), config, shifter_ != nullptr);
  RowOutput output(std::move(prompt), limit, request, config, options_.make_text, sampler_scratch_);
  const int64_t cached = request.cached_tokens;
  auto row = std::make_unique<Row>(Row{std::move(output), std::move(given), cached, cached, 0, {}});
  if (row->running() && config.is_encoder_decoder)
    sources_.add(static_cast<int32_t>(rows_.size()), row->given);
  rows_.push_back(std::move(row));
}

bool Generation::any_running() const {
  return std::ranges::any_of(rows_, [](const auto& row) { return row->running(); });
}

const std::vector<int32_t>& Generation::ids(size_t row) const { return rows_[row]->output.ids(); }
std::vector<int32_t> Generation::context_ids(size_t row) const {
  std::vector<int32_t> ids = rows_[row]->output.ids();
  if (!shifter_) return ids;
  const auto gone = ids.begin() + static_cast<std::ptrdiff_t>(
                                      std::min(shifter_->keep(), static_cast<int64_t>(ids.size())));
  ids.erase(gone, gone + static_cast<std::ptrdiff_t>(rows_[row]->dropped));
  return ids;
}

const Result& Generation::result(size_t row) const { return rows_[row]->output.result(); }
const std::vector<int32_t>& Generation::prompt_ids(size_t row) const { return rows_[row]->given; }

int64_t Generation::prompt_tokens() const {
  int64_t count = 0;
  for (size_t r = 0; r < rows_.size(); ++r) count += static_cast<int64_t>(prompt_ids(r).size());
  return count;
}

int64_t Generation::prompt_tokens_fed() const {
  if (session_.model().info().is_encoder_decoder) return sources_.tokens_encoded();
  int64_t count = 0;
  for (const auto& row : rows_)
    count += std::min(row->fed, row->output.prompt_length()) - row->cached;
  return count;
}

int64_t Generation::new_tokens() const {
  int64_t count = 0;
  for (const auto& row : rows_) count += row->output.new_tokens();
  return count;
}

bool Generation::prefilled() const {
  return std::ranges::none_of(rows_,
                              [](const auto& row) { return row->running() && row->in_prompt(); });
}

void Generation::check_drafter() {
  if (session_.model().info().is_encoder_decoder)
    fail_as(ErrorKind::kUnsupported, session_.model().info().architecture,
            " has an encoder, and guesses are made for decoders alone; generate without a draft "
            "model or prompt lookup");
  if (session_.cache().tentative_limit(0) == 0)
    fail_as(ErrorKind::kUnsupported,
            "this cache cannot take back guesses that were wrong (recurrent states never can, "
            "windows can with a rollback); generate without a draft model or prompt lookup");
  options_.drafter->begin(session_.model());
}

// Guesses for every row that runs. None for anybody where a row's cache must settle first: a
// quantized one about to flush takes its next token alone.
void Generation::draft() {
  std::erase_if(drafts_,
                [&](const Draft& d) { return !rows_[static_cast<size_t>(d.row)]->running(); });
  int64_t least = std::numeric_limits<int64_t>::max();
  for (Draft& draft : drafts_) {
    const Row& row = *rows_[static_cast<size_t>(draft.row)];
    const int64_t limit = session_.cache().tentative_limit(draft.row);
    const int64_t left = row.output.limit() - row.output.new_tokens();
    least = std::min(least, limit);
    draft.ids = row.output.ids();
    draft.most = std::max<int64_t>(std::min(limit, left) - 1, 0);
    draft.tokens.clear();
    draft.right = 0;
  }
  if (drafts_.empty()) return;
  for (Draft& draft : drafts_)
    if (least < 1) draft.most = 0;
  options_.drafter->propose(drafts_);
  for (Draft& draft : drafts_) {
    if (static_cast<int64_t>(draft.tokens.size()) > draft.most)
      draft.tokens.resize(static_cast<size_t>(draft.most));
  }
}

// Prompts first, a chunk at a time; then the next tokens of every running row.
void Generation::plan_step() {
  plan_.clear();
  decoding_ = prefilled();
  if (decoding_) return plan_next();
  for (size_t r = 0; r < rows_.size(); ++r) {
    const Row& row = *rows_[r];
    if (!row.running() || !row.in_prompt()) continue;
    const int64_t left = row.output.length() - row.fed;
    const auto index = static_cast<int32_t>(r);
    const int64_t count = std::min(
        {left, options_.prefill_chunk - plan_.tokens(), session_.cache().step_limit(index)});
    if (count == 0) break;
    const auto ids = std::span(row.output.ids())
                         .subspan(static_cast<size_t>(row.fed), static_cast<size_t>(count));
    plan_.add(index, ids, row.fed, count == left ? LogitsOf::kLast : LogitsOf::kNone);
  }
}

// The newest token of every running row, and the guesses that follow it.
void Generation::plan_next() {
  draft();
  size_t running = 0;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const Row& row = *rows_[r];
    if (!row.running() || !make_room(static_cast<int32_t>(r))) continue;
    std::span<const int32_t> guesses;
    if (!drafts_.empty()) guesses = drafts_[running++].tokens;
    plan_.add(static_cast<int32_t>(r), std::span(row.output.ids()).last(1), row.held(),
              LogitsOf::kAll, guesses);
  }
}

// Shifts a row whose context is full; false when it cannot, and the row ends there.
bool Generation::make_room(int32_t index) {
  Row& row = *rows_[static_cast<size_t>(index)];
  if (!shifter_ || !shifter_->full(row.held())) return true;
  if (!shifter_->shift(index)) {
    finish(row, index, FinishReason::kLength);
    return false;
  }
  row.dropped += shifter_->discard();
  return true;
}

bool Generation::step() {
  const bool stop = options_.interrupted && options_.interrupted();
  for (size_t r = 0; stop && r < rows_.size(); ++r) {
    if (rows_[r]->running()) finish(*rows_[r], static_cast<int32_t>(r), FinishReason::kCancelled);
  }
  if (sources_.left() && any_running()) {
    sources_.encode_next(session_, options_.prefill_chunk);
    return true;
  }
  plan_step();
  if (plan_.empty()) return false;
  const Step step = plan_.step(decoding_ && plan_.tokens() > plan_.batch());
  choose(step, session_.forward(step, plan_.ids(), plan_.logit_rows()));
  take_chosen(step);
  return any_running();
}

// All rows choose before one of them changes, so that logits which no sampler can use undo the
// step.
void Generation::choose(const Step& step, const TensorView& logits) {
  try {
    for (int32_t b = 0; b < step.batch; ++b)
      choose_of(step, b, *rows_[static_cast<size_t>(step.slot[b])], logits);
  } catch (...) {
    session_.cache().cancel(step);
    throw;
  }
}

void Generation::choose_of(const Step& step, int32_t b, Row& row, const TensorView& logits) {
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  const auto first = static_cast<size_t>(plan_.logit_start(b));
  const auto count = static_cast<size_t>(plan_.logit_start(b + 1)) - first;
  row.chosen.clear();
  if (count == 0) return;
  const auto guesses = plan_.ids().first(static_cast<size_t>(step.q_start[b + 1])).last(count - 1);
  row.output.choose_behind({logits.as<float>() + first * vocab, count * vocab}, guesses,
                           row.chosen);
}

void Generation::take_chosen(const Step& step) {
  count_.clear();
  for (int32_t b = 0; b < step.batch; ++b) {
    Row& row = *rows_[static_cast<size_t>(step.slot[b])];
    int32_t taken = 0;
    for (size_t i = 0; i < row.chosen.size() && row.running(); ++i, ++taken)
      take_token(step.slot[b], row.chosen[i]);
    count_.push_back(step.tentative ? taken : step.q_len(b));
    row.fed += count_.back();
  }
  if (step.tentative) session_.cache().accept(step, count_);
  if (!decoding_ || drafts_.empty()) return;
  for (size_t b = 0; b < drafts_.size(); ++b) {
    Draft& draft = drafts_[b];
    draft.ids = rows_[static_cast<size_t>(draft.row)]->output.ids();
    draft.right = count_[b] - 1;
    drafted_ += static_cast<int64_t>(draft.tokens.size());
    accepted_ += draft.right;
  }
  options_.drafter->verified(drafts_);
}

void Generation::take_token(int32_t index, int32_t id) {
  rows_[static_cast<size_t>(index)]->output.take(
      id, [&](int32_t shown, std::string_view text) { return show(index, shown, text); });
}

void Generation::finish(Row& row, int32_t index, FinishReason reason) {
  row.output.finish(reason,
                    [&](int32_t shown, std::string_view text) { return show(index, shown, text); });
}

bool Generation::show(int32_t index, int32_t id, std::string_view text) {
  return !options_.on_token || options_.on_token({index, id, text});
}

Result generate(Session& session, Request request, GenerationOptions options) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  Generation generation(session, std::move(requests), std::move(options));
  generation.run();
  return generation.result(0);
}

}  // namespace larder
