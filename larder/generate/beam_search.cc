#include "larder/generate/beam_search.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/request.h"

namespace larder {

struct BeamSearch::Row {
  std::vector<int32_t> source;  // of an encoder-decoder model
  std::vector<int32_t> prompt, eos;
  int64_t fed = 0;    // of the prompt, in the cache
  int32_t slot = 0;   // cache row of the first beam
  int64_t limit = 0;  // new tokens at most
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<BeamScorer> scorer;
  std::vector<BeamResult> results;

  bool running() const { return scorer != nullptr && !scorer->done(); }
  bool in_prompt() const { return fed < static_cast<int64_t>(prompt.size()); }
};

namespace {

void check_request_for_beams(const Request& request, size_t index) {
  if (request.sampling.do_sample)
    fail("request ", index,
         ": do_sample and num_beams exclude each other; beam search does not "
         "draw");
  if (!request.stop_strings.empty())
    fail("request ", index, ": stop_strings cannot be used with beam search, only eos_token_ids");
}

}  // namespace

BeamSearch::BeamSearch(Session& session, const std::vector<Request>& requests,
                       const BeamParams& params, GenerationOptions options)
    : session_(session),
      options_(std::move(options)),
      sampler_scratch_(static_cast<size_t>(session.model().info().vocab_size)) {
  validate(params);
  check_requests(requests, session, options_.make_text != nullptr);
  for (const Request& request : requests)
    if (request.cached_tokens > 0)
      fail("beam search begins with an empty cache; call reset() first");
  if (options_.context_shift) fail("a context shift cannot be used with beam search");
  if (options_.prefill_chunk < 1)
    fail("prefill_chunk ", options_.prefill_chunk, " must be at least 1");
  for (size_t i = 0; i < requests.size(); ++i) check_request_for_beams(requests[i], i);
  for (const Request& request : requests) add_row(request, params);
  const size_t beams = rows_.size() * static_cast<size_t>(params.num_beams);
  const int64_t chunk = std::min<int64_t>(options_.prefill_chunk, prompt_tokens());
  plan_.reserve(beams, std::max(beams, static_cast<size_t>(chunk)));
  owner_.reserve(beams);
  source_.reserve(beams);
}

BeamSearch::~BeamSearch() = default;

void BeamSearch::add_row(const Request& request, const BeamParams& params) {
  const ModelInfo& config = session_.model().info();
  const auto vocab = static_cast<size_t>(config.vocab_size);
  auto row = std::make_unique<Row>();
  std::vector<int32_t> given = with_bos(request, config);
  row->prompt = decoder_prompt(request, given, config);
  if (config.is_encoder_decoder) row->source = std::move(given);
  row->eos = request.eos_token_ids;
  row->slot = static_cast<int32_t>(rows_.size());
  row->limit = new_token_limit(request, static_cast<int64_t>(row->prompt.size()), config);
  row->sampler = std::make_unique<Sampler>(
      request.sampling, SamplerRow{vocab, row->prompt.size(), row->eos, 0}, sampler_scratch_);
  if (row->limit > 0) {
    row->scorer = std::make_unique<BeamScorer>(params, vocab, row->prompt, row->eos, row->limit);
    if (!row->source.empty()) sources_.add(row->slot, row->source);
  } else {
    row->results.emplace_back().finish_reason = FinishReason::kLength;
  }
  rows_.push_back(std::move(row));
}

bool BeamSearch::any_running() const {
  return std::ranges::any_of(rows_, [](const auto& row) { return row->running(); });
}

std::span<const BeamResult> BeamSearch::results(size_t row) const { return rows_[row]->results; }
const std::vector<int32_t>& BeamSearch::prompt_ids(size_t row) const {
  return rows_[row]->source.empty() ? rows_[row]->prompt : rows_[row]->source;
}

int64_t BeamSearch::prompt_tokens() const {
  int64_t count = 0;
  for (size_t r = 0; r < rows_.size(); ++r) count += static_cast<int64_t>(prompt_ids(r).size());
  return count;
}

int64_t BeamSearch::prompt_tokens_fed() const {
  if (session_.model().info().is_encoder_decoder) return sources_.tokens_encoded();
  int64_t count = 0;
  for (const auto& row : rows_) count += row->fed;
  return count;
}

int64_t BeamSearch::new_tokens() const {
  int64_t count = 0;
  for (const auto& row : rows_) count += row->scorer ? row->scorer->new_tokens() : 0;
  return count;
}

bool BeamSearch::prefilled() const {
  return std::ranges::none_of(rows_,
                              [](const auto& row) { return row->running() && row->in_prompt(); });
}

// Prompts first, a chunk at a time, each in the cache row of its number; then one token of every
// beam.
void BeamSearch::plan_step() {
  plan_.clear();
  owner_.clear();
  const bool prefill = !prefilled();
  for (const auto& row : rows_) {
    if (!row->running() || row->in_prompt() != prefill) continue;
    if (!prefill) {
      for (size_t beam = 0; beam < row->scorer->num_beams(); ++beam) {
        const std::span<const int32_t> ids = row->scorer->ids(beam);
        plan_.add(row->slot + static_cast<int32_t>(beam), ids.last(1),
                  static_cast<int64_t>(ids.size()) - 1, LogitsOf::kLast);
        owner_.emplace_back(row.get(), beam);
      }
      continue;
    }
    const int64_t left = static_cast<int64_t>(row->prompt.size()) - row->fed;
    const int64_t count = std::min(
        {left, options_.prefill_chunk - plan_.tokens(), session_.cache().step_limit(row->slot)});
    if (count == 0) break;
    const auto ids = std::span<const int32_t>(row->prompt)
                         .subspan(static_cast<size_t>(row->fed), static_cast<size_t>(count));
    plan_.add(row->slot, ids, row->fed, count == left ? LogitsOf::kLast : LogitsOf::kNone);
    owner_.emplace_back(row.get(), 0);
  }
}

bool BeamSearch::step() {
  if (options_.interrupted && options_.interrupted()) {
    for (const auto& row : rows_) {
      if (!row->running()) continue;
      row->scorer->stop();
      settle(*row, FinishReason::kCancelled);
      if (row->results.empty())
        row->results.emplace_back().finish_reason = FinishReason::kCancelled;
    }
  }
  if (sources_.left() && any_running()) {
    sources_.encode_next(session_, options_.prefill_chunk);
    return true;
  }
  follow_beams();
  plan_step();
  if (plan_.empty()) return false;
  const Step step = plan_.step();
  consider(step, session_.forward(step, plan_.ids(), plan_.logit_rows()));
  for (int32_t b = 0; b < step.batch; ++b) {
    const auto [row, beam] = owner_[static_cast<size_t>(b)];
    if (row->in_prompt()) row->fed += step.q_len(b);
    if (beam != 0 || row->in_prompt()) continue;
    row->scorer->advance();
    beams_moved_ = true;
    if (row->scorer->done()) settle(*row, FinishReason::kLength);
  }
  return any_running();
}

// The cache's rows become those of the beams under way. Waits until every prompt is in the cache.
void BeamSearch::follow_beams() {
  if (!beams_moved_ || !prefilled()) return;
  source_.clear();
  for (const auto& row : rows_) {
    if (!row->running()) continue;
    for (size_t beam = 0; beam < row->scorer->num_beams(); ++beam)
      source_.push_back(row->slot + row->scorer->source(beam));
  }
  session_.cache().select_rows(source_);
  int32_t slot = 0;
  for (const auto& row : rows_) {
    if (!row->running()) continue;
    row->slot = slot;
    slot += static_cast<int32_t>(row->scorer->num_beams());
  }
  beams_moved_ = false;
}

// All beams are scored before one of them changes, so that logits which cannot be used undo the
// step.
void BeamSearch::consider(const Step& step, const TensorView& logits) {
  const auto vocab = static_cast<size_t>(session_.model().info().vocab_size);
  try {
    for (int32_t b = 0; b < step.batch; ++b) {
      if (plan_.logit_start(b) == plan_.logit_start(b + 1)) continue;
      const auto [row, beam] = owner_[static_cast<size_t>(b)];
      const std::span<float> scores(
          logits.as<float>() + static_cast<size_t>(plan_.logit_start(b)) * vocab, vocab);
      row->sampler->to_log_probs(scores, row->scorer->ids(beam));
      row->scorer->consider(beam, scores);
      if (row->scorer->stuck()) fail("the settings forbid every token; relax one of them");
    }
  } catch (...) {
    session_.cache().cancel(step);
    throw;
  }
}

void BeamSearch::settle(Row& row, FinishReason reason) {
  for (BeamScorer::Sequence& sequence : row.scorer->best()) {
    BeamResult& result = row.results.emplace_back();
    result.score = sequence.score;
    const bool ended = std::ranges::find(row.eos, sequence.ids.back()) != row.eos.end();
    result.finish_reason = ended ? FinishReason::kStop : reason;
    if (options_.make_text) {
      const std::unique_ptr<TokenText> text = options_.make_text(row.prompt);
      for (const int32_t id : sequence.ids) result.text += text->push(id);
      result.text += text->finish();
    }
    result.output_ids = std::move(sequence.ids);
  }
}

}  // namespace larder
