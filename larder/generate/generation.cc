#include "larder/generate/generation.h"

#include <algorithm>
#include <numeric>

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
  std::vector<int32_t> prompt, ids;  // ids: prompt and output together
  int64_t fed = 0;                   // of ids, in the cache
  int64_t limit = 0;                 // new tokens at most
  std::vector<int32_t> eos;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<TokenText> text;
  std::unique_ptr<StopMatcher> stops;
  Result result;

  bool running() const { return result.finish_reason == FinishReason::kNone; }
  bool in_prompt() const { return fed < static_cast<int64_t>(prompt.size()); }
};

namespace {

std::vector<int32_t> with_bos(const Request& request, const ModelInfo& config) {
  if (!request.prompt_ids.empty() || !config.bos_token_id) return request.prompt_ids;
  return {static_cast<int32_t>(*config.bos_token_id)};
}

// New tokens that have their places ahead; a row that runs longer grows.
constexpr int64_t kMostExpected = 1 << 20;

// New tokens at most. The last one is never fed, so it needs no place in the context.
int64_t new_token_limit(const Request& request, int64_t prompt_length, const ModelInfo& config) {
  return std::min(request.max_new_tokens, config.max_position_embeddings - prompt_length + 1);
}

// Everything that can be said of one request before it runs.
void check_request(const Request& request, const Model& model, const Cache& cache, bool has_text,
                   size_t index) {
  const ModelInfo& config = model.info();
  const auto refuse = [&](auto... parts) { fail("request ", index, ": ", parts...); };
  const std::vector<int32_t> prompt = with_bos(request, config);
  const auto length = static_cast<int64_t>(prompt.size());
  validate(request.sampling);
  if (request.max_new_tokens < 0)
    refuse("max_new_tokens ", request.max_new_tokens, " must not be negative");
  if (prompt.empty()) refuse("the prompt is empty and the model has no bos_token_id to start from");
  for (const int32_t id : prompt) {
    if (id < 0 || id >= config.vocab_size) {
      refuse("prompt id ", id, " is outside the model's vocabulary 0..", config.vocab_size - 1);
    }
  }
  if (length > config.max_position_embeddings) {
    refuse("the prompt has ", length, " tokens, more than max_position_embeddings ",
           config.max_position_embeddings);
  }
  if (!request.stop_strings.empty() && !has_text) refuse("stop_strings need a tokenizer");
  const int64_t stored =
      length + std::max<int64_t>(new_token_limit(request, length, config) - 1, 0);
  if (request.max_new_tokens > 0 && cache.max_len() >= 0 && stored > cache.max_len()) {
    fail_as(ErrorKind::kNoRoom, "request ", index, ": ", length, " prompt and ",
            request.max_new_tokens, " new tokens need ", stored,
            " places in the cache, but max_cache_len is ", cache.max_len());
  }
}

}  // namespace

Generation::Generation(Session& session, std::vector<Request> requests, GenerationOptions options)
    : session_(session),
      options_(std::move(options)),
      sampler_scratch_(static_cast<size_t>(session.model().info().vocab_size)) {
  check(requests);
  const ModelInfo& config = session_.model().info();
  for (Request& request : requests) {
    auto row = std::make_unique<Row>();
    row->prompt = with_bos(request, config);
    row->ids = row->prompt;
    const auto length = static_cast<int64_t>(row->prompt.size());
    row->limit = new_token_limit(request, length, config);
    // A model without a context limit sets none here either.
    const auto expected = static_cast<size_t>(std::min<int64_t>(row->limit, kMostExpected));
    row->ids.reserve(static_cast<size_t>(length) + expected);
    row->result.output_ids.reserve(expected);
    row->eos = request.eos_token_ids;
    row->sampler =
        std::make_unique<Sampler>(request.sampling,
                                  SamplerRow{static_cast<size_t>(config.vocab_size),
                                             row->prompt.size(), request.eos_token_ids, 0},
                                  sampler_scratch_);
    if (options_.make_text) row->text = options_.make_text(row->prompt);
    row->stops = std::make_unique<StopMatcher>(std::move(request.stop_strings));
    if (row->limit == 0) row->result.finish_reason = FinishReason::kLength;
    rows_.push_back(std::move(row));
  }
  const int64_t chunk = std::min<int64_t>(options_.prefill_chunk, prompt_tokens());
  const size_t most = std::max(rows_.size(), static_cast<size_t>(chunk));
  for (auto* list : {&slot_, &ids_, &logit_rows_, &logit_owner_, &chosen_}) list->reserve(most);
  q_start_.reserve(rows_.size() + 1);
  position_.reserve(most);
}

Generation::~Generation() = default;

void Generation::check(const std::vector<Request>& requests) const {
  if (requests.empty()) fail("a batch of 0 requests");
  if (options_.prefill_chunk < 1)
    fail("prefill_chunk ", options_.prefill_chunk, " must be at least 1");
  if (const int64_t held = session_.cache().seq_len(0); held > 0 || session_.cache().batch() > 0) {
    fail("the cache still holds ", held, " tokens of an earlier generation; call reset() first");
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    check_request(requests[i], session_.model(), session_.cache(), options_.make_text != nullptr,
                  i);
  }
}

const Result& Generation::result(size_t row) const { return rows_[row]->result; }
const std::vector<int32_t>& Generation::prompt_ids(size_t row) const { return rows_[row]->prompt; }

int64_t Generation::prompt_tokens() const {
  int64_t count = 0;
  for (const auto& row : rows_) count += static_cast<int64_t>(row->prompt.size());
  return count;
}

int64_t Generation::prompt_tokens_fed() const {
  int64_t count = 0;
  for (const auto& row : rows_)
    count += std::min(row->fed, static_cast<int64_t>(row->prompt.size()));
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

void Generation::plan_row(int32_t index, int32_t count) {
  const Row& row = *rows_[static_cast<size_t>(index)];
  for (int32_t i = 0; i < count; ++i) {
    ids_.push_back(row.ids[static_cast<size_t>(row.fed + i)]);
    position_.push_back(row.fed + i);
  }
  slot_.push_back(index);
  q_start_.push_back(static_cast<int32_t>(ids_.size()));
  if (row.fed + count == static_cast<int64_t>(row.ids.size())) {
    logit_rows_.push_back(static_cast<int32_t>(ids_.size()) - 1);
    logit_owner_.push_back(index);
  }
}

// Prompts first, a chunk at a time; then one token of every running row.
void Generation::plan_step() {
  for (auto* list : {&q_start_, &slot_, &ids_, &logit_rows_, &logit_owner_}) list->clear();
  position_.clear();
  q_start_.push_back(0);
  const bool prefill = !prefilled();
  for (size_t r = 0; r < rows_.size(); ++r) {
    const Row& row = *rows_[r];
    if (!row.running() || row.in_prompt() != prefill) continue;
    const int64_t room = options_.prefill_chunk - static_cast<int64_t>(ids_.size());
    const int64_t left = static_cast<int64_t>(row.ids.size()) - row.fed;
    const auto index = static_cast<int32_t>(r);
    const int64_t count = prefill ? std::min({left, room, session_.cache().step_limit(index)}) : 1;
    if (count > 0) plan_row(index, static_cast<int32_t>(count));
  }
}

bool Generation::step() {
  const bool stop = options_.interrupted && options_.interrupted();
  for (size_t r = 0; stop && r < rows_.size(); ++r) {
    if (rows_[r]->running()) finish(*rows_[r], static_cast<int32_t>(r), FinishReason::kCancelled);
  }
  plan_step();
  if (slot_.empty()) return false;
  const Step step{static_cast<int32_t>(slot_.size()),
                  static_cast<int32_t>(ids_.size()),
                  q_start_.data(),
                  position_.data(),
                  slot_.data(),
                  false};
  const TensorView logits = session_.forward(step, ids_, logit_rows_);
  choose(step, logits);
  for (int32_t b = 0; b < step.batch; ++b)
    rows_[static_cast<size_t>(slot_[static_cast<size_t>(b)])]->fed += step.q_len(b);
  for (size_t i = 0; i < logit_owner_.size(); ++i) take_token(logit_owner_[i], chosen_[i]);
  return std::ranges::any_of(rows_, [](const auto& row) { return row->running(); });
}

// All rows choose before one of them changes, so that logits which no sampler can use undo the
// step.
void Generation::choose(const Step& step, const TensorView& logits) {
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  chosen_.clear();
  try {
    for (size_t i = 0; i < logit_owner_.size(); ++i) {
      const Row& row = *rows_[static_cast<size_t>(logit_owner_[i])];
      chosen_.push_back(row.sampler->next({logits.as<float>() + i * vocab, vocab}, row.ids));
    }
  } catch (...) {
    session_.cache().cancel(step);
    throw;
  }
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
