#include "larder/generate/generation.h"

#include <algorithm>
#include <limits>

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
    default:
      return "";
  }
}

struct Generation::Row {
  std::vector<int32_t> source;       // of an encoder-decoder model
  std::vector<int32_t> prompt, ids;  // what the decoder is fed first; that and the output together
  int64_t fed = 0;                   // of ids, in the cache
  int64_t cached = 0;                // of those, there from the start
  int64_t dropped = 0;               // of those, gone again by context shifts
  int64_t limit = 0;                 // new tokens at most
  std::vector<int32_t> chosen;       // by the step that runs
  std::vector<int32_t> eos;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<TokenText> text;
  std::unique_ptr<StopMatcher> stops;
  Result result;

  bool running() const { return result.finish_reason == FinishReason::kNone; }
  int64_t held() const { return fed - dropped; }  // by the cache
  bool in_prompt() const { return fed < static_cast<int64_t>(prompt.size()); }
};

namespace {

// New tokens that have their places ahead; a row that runs longer grows.
constexpr int64_t kMostExpected = 1 << 20;

}  // namespace

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
  feed_.reserve(most_chosen);
  count_.reserve(rows_.size());
  for (size_t r = 0; drafter && r < rows_.size(); ++r) {
    drafts_.push_back({static_cast<int32_t>(r), {}, 0, {}, 0});
    drafts_.back().tokens.reserve(most_chosen);
  }
}

Generation::~Generation() = default;

void Generation::add_row(Request& request) {
  const ModelInfo& config = session_.model().info();
  auto row = std::make_unique<Row>();
  std::vector<int32_t> given = with_bos(request, config);
  row->prompt = decoder_prompt(request, given, config);
  if (config.is_encoder_decoder) row->source = std::move(given);
  row->ids = row->prompt;
  row->fed = row->cached = request.cached_tokens;
  const auto length = static_cast<int64_t>(row->prompt.size());
  row->limit = new_token_limit(request, length, config, shifter_ != nullptr);
  // A model without a context limit sets none here either.
  const auto expected = static_cast<size_t>(std::min<int64_t>(row->limit, kMostExpected));
  row->ids.reserve(static_cast<size_t>(length) + expected);
  row->result.output_ids.reserve(expected);
  row->eos = request.eos_token_ids;
  row->sampler = std::make_unique<Sampler>(request.sampling,
                                           SamplerRow{static_cast<size_t>(config.vocab_size),
                                                      row->prompt.size(), request.eos_token_ids, 0},
                                           sampler_scratch_);
  if (options_.make_text) row->text = options_.make_text(row->prompt);
  row->stops = std::make_unique<StopMatcher>(std::move(request.stop_strings));
  if (row->limit == 0) row->result.finish_reason = FinishReason::kLength;
  if (row->running() && !row->source.empty())
    sources_.add(static_cast<int32_t>(rows_.size()), row->source);
  rows_.push_back(std::move(row));
}

bool Generation::any_running() const {
  return std::ranges::any_of(rows_, [](const auto& row) { return row->running(); });
}

const std::vector<int32_t>& Generation::ids(size_t row) const { return rows_[row]->ids; }
std::vector<int32_t> Generation::context_ids(size_t row) const {
  std::vector<int32_t> ids = rows_[row]->ids;
  if (!shifter_) return ids;
  const auto gone = ids.begin() + static_cast<std::ptrdiff_t>(
                                      std::min(shifter_->keep(), static_cast<int64_t>(ids.size())));
  ids.erase(gone, gone + static_cast<std::ptrdiff_t>(rows_[row]->dropped));
  return ids;
}

const Result& Generation::result(size_t row) const { return rows_[row]->result; }
const std::vector<int32_t>& Generation::prompt_ids(size_t row) const {
  return rows_[row]->source.empty() ? rows_[row]->prompt : rows_[row]->source;
}

int64_t Generation::prompt_tokens() const {
  int64_t count = 0;
  for (size_t r = 0; r < rows_.size(); ++r) count += static_cast<int64_t>(prompt_ids(r).size());
  return count;
}

int64_t Generation::prompt_tokens_fed() const {
  if (session_.model().info().is_encoder_decoder) return sources_.tokens_encoded();
  int64_t count = 0;
  for (const auto& row : rows_)
    count += std::min(row->fed, static_cast<int64_t>(row->prompt.size())) - row->cached;
  return count;
}

int64_t Generation::new_tokens() const {
  int64_t count = 0;
  for (const auto& row : rows_) count += static_cast<int64_t>(row->result.output_ids.size());
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
    const int64_t left = row.limit - static_cast<int64_t>(row.result.output_ids.size());
    least = std::min(least, limit);
    draft.ids = row.ids;
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
    const int64_t left = static_cast<int64_t>(row.ids.size()) - row.fed;
    const auto index = static_cast<int32_t>(r);
    const int64_t count = std::min(
        {left, options_.prefill_chunk - plan_.tokens(), session_.cache().step_limit(index)});
    if (count == 0) break;
    const auto ids = std::span<const int32_t>(row.ids).subspan(static_cast<size_t>(row.fed),
                                                               static_cast<size_t>(count));
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
    feed_.assign(1, row.ids.back());
    if (!drafts_.empty()) {
      const std::vector<int32_t>& guesses = drafts_[running++].tokens;
      feed_.insert(feed_.end(), guesses.begin(), guesses.end());
    }
    plan_.add(static_cast<int32_t>(r), feed_, row.held(), LogitsOf::kAll);
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

// What the row's sampler chooses behind each token that was fed, as long as that is what was fed
// next.
void Generation::choose_of(const Step& step, int32_t b, Row& row, const TensorView& logits) {
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  const size_t known = row.ids.size();
  row.chosen.clear();
  try {
    for (int32_t i = plan_.logit_start(b); i < plan_.logit_start(b + 1); ++i) {
      float* scores = logits.as<float>() + static_cast<size_t>(i) * vocab;
      const int32_t id = row.sampler->next({scores, vocab}, row.ids);
      row.chosen.push_back(id);
      row.ids.push_back(id);
      const int32_t next = plan_.logit_rows()[static_cast<size_t>(i)] + 1;
      if (next < step.q_start[b + 1] && plan_.ids()[static_cast<size_t>(next)] != id) break;
    }
  } catch (...) {
    row.ids.resize(known);
    throw;
  }
  row.ids.resize(known);
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
    draft.ids = rows_[static_cast<size_t>(draft.row)]->ids;
    draft.right = count_[b] - 1;
    drafted_ += static_cast<int64_t>(draft.tokens.size());
    accepted_ += draft.right;
  }
  options_.drafter->verified(drafts_);
}

void Generation::take_token(int32_t index, int32_t id) {
  Row& row = *rows_[static_cast<size_t>(index)];
  row.ids.push_back(id);
  row.result.output_ids.push_back(id);
  const bool eos = std::ranges::find(row.eos, id) != row.eos.end();
  bool stopped = false;
  std::string_view shown;
  std::string piece;
  if (row.text) {
    piece = row.text->push(id);
    const StopMatcher::Shown found = row.stops->feed(piece);
    shown = found.text;
    stopped = found.stopped;
    row.result.text.append(shown);
  }
  const bool more = !options_.on_token || options_.on_token({index, id, shown});
  if (eos || stopped) return finish(row, index, FinishReason::kStop);
  if (!more) return finish(row, index, FinishReason::kCancelled);
  if (static_cast<int64_t>(row.result.output_ids.size()) >= row.limit)
    finish(row, index, FinishReason::kLength);
}

// Ends the row and shows what was held back: an unfinished character, or text that might have
// become a stop string.
void Generation::finish(Row& row, int32_t index, FinishReason reason) {
  row.result.finish_reason = reason;
  if (!row.text) return;
  const auto show = [&](const StopMatcher::Shown& found) {
    if (found.stopped && reason != FinishReason::kCancelled)
      row.result.finish_reason = FinishReason::kStop;
    if (found.text.empty()) return;
    row.result.text.append(found.text);
    if (options_.on_token) options_.on_token({index, -1, found.text});
  };
  show(row.stops->feed(row.text->finish()));
  show(row.stops->finish());
}

Result generate(Session& session, Request request, GenerationOptions options) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  Generation generation(session, std::move(requests), std::move(options));
  generation.run();
  return generation.result(0);
}

}  // namespace larder
