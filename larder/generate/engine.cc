#include "larder/generate/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "larder/base/error.h"
#include "larder/generate/engine_recorder.h"

namespace larder {
namespace {

// Tokens of a step that have their places ahead; a step of more grows the lists once.
constexpr int64_t kMostExpectedTokens = 1 << 16;

double seconds_between(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

// While the engine works, samples that have ended stay in the list: somebody may hold them.
class Engine::Busy {
 public:
  explicit Busy(Engine& engine) : engine_(engine), outer_(!engine.busy_) { engine.busy_ = true; }
  ~Busy() {
    if (!outer_) return;
    engine_.busy_ = false;
    std::erase_if(engine_.samples_, [](const auto& sample) { return sample->ended; });
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Engine& engine_;
  const bool outer_;
};

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
               Allocator& allocator, const CacheRegistry& registry)
    : options_(options),
      session_(std::move(model), options.session, allocator, registry),
      prefix_cache_(options.prefix_cache ? std::make_unique<PrefixCache>(session_.cache())
                                         : nullptr),
      swap_(options.swap_folder
                ? std::make_unique<SwapSpace>(
                      session_.cache(), std::make_unique<TemporaryBlockFile>(*options.swap_folder))
                : nullptr),
      beginnings_(beginning_view()),
      pool_(view_of_pool(session_.cache(), prefix_cache_.get())),
      scheduler_(options.scheduler, *pool_, beginnings_.get()),
      slots_(session_.cache()),
      sampler_scratch_(static_cast<size_t>(session_.model().info().vocab_size)) {
  const ModelInfo& info = session_.model().info();
  if (info.is_encoder_decoder) {
    fail_as(ErrorKind::kUnsupported, info.architecture,
            " has an encoder, and the engine runs decoders alone; use Generation");
  }
  const auto rows = static_cast<size_t>(std::min(options.scheduler.max_running, 1024));
  const int64_t tokens = std::min(options.scheduler.max_tokens_per_step, kMostExpectedTokens);
  plan_.reserve(rows, static_cast<size_t>(tokens));
  planned_.reserve(rows);
  kept_.reserve(rows);
  if (options.events != nullptr) recorder_ = std::make_unique<Recorder>(*this, *options.events);
}

Engine::~Engine() = default;

Engine::Sample* Engine::find(int64_t id) {
  const auto at = std::ranges::lower_bound(samples_, id, {}, [](const auto& s) { return s->id; });
  return at != samples_.end() && (*at)->id == id && !(*at)->ended ? at->get() : nullptr;
}

void Engine::check(const EngineRequest& asked, int64_t prompt_tokens, int64_t limit) const {
  if (asked.num_samples < 1) fail("num_samples ", asked.num_samples, " must be at least 1");
  if (asked.request.cached_tokens != 0)
    fail("cached_tokens ", asked.request.cached_tokens, ": the engine's cache is its own");
  if (asked.prompt_lookup && session_.cache().tentative_limit(0) == 0) {
    fail_as(ErrorKind::kUnsupported,
            "prompt_lookup: recurrent states cannot take back guesses that were wrong");
  }
  if (limit == 0 || pool_->num_blocks() == PoolView::kUnbounded) return;
  const int64_t stored = prompt_tokens + limit - 1, need = pool_->blocks_for(stored);
  if (need > pool_->num_blocks()) {
    fail_as(ErrorKind::kNoRoom, "the request: ", prompt_tokens, " prompt and ", limit,
            " new tokens may need ", need, " blocks, but the pool has ", pool_->num_blocks());
  }
}

int64_t Engine::submit(const EngineRequest& request) {
  const ModelInfo& info = session_.model().info();
  check_request(request.request, session_, options_.make_text != nullptr, false, "the request");
  const std::vector<int32_t> prompt = with_bos(request.request, info);
  const auto length = static_cast<int64_t>(prompt.size());
  const int64_t limit = new_token_limit(request.request, length, info);
  check(request, length, limit);

  const auto asked = std::make_shared<const EngineRequest>(request);
  std::vector<std::unique_ptr<Sample>> made;
  for (int32_t i = 0; i < request.num_samples; ++i) {
    Request own = asked->request;
    own.sampling.seed += static_cast<uint64_t>(i);
    made.push_back(std::make_unique<Sample>(
        Sample{next_id_ + i, asked, next_id_, scheduler_.order_of(request.priority),
               RowOutput(prompt, limit, own, info, options_.make_text, sampler_scratch_)}));
    made.back()->follows = i > 0 && limit > 0;
    if (request.prompt_lookup)
      made.back()->guesses = std::make_unique<Guesses>(*request.prompt_lookup, limit);
  }
  if (limit > 0) enqueue(*made.front(), request.num_samples);
  for (size_t i = 0; recorder_ && i < made.size(); ++i) recorder_->begun(*made[i]);
  std::ranges::move(made, std::back_inserter(samples_));
  stats_.submitted += request.num_samples;
  return std::exchange(next_id_, next_id_ + request.num_samples);
}

// `rows`: its own and those of the samples that follow it.
void Engine::enqueue(Sample& sample, int32_t rows) {
  sample.leads = rows > 1;
  sample.queued = true;
  scheduler_.add({sample.id, sample.order, sample.output.length(), rows});
}

bool Engine::cancel(int64_t id) {
  const Busy busy(*this);
  bool found = false;
  const auto first =
      std::ranges::lower_bound(samples_, id, {}, [](const auto& s) { return s->id; });
  // By number: a callback may add to the list.
  for (auto i = static_cast<size_t>(first - samples_.begin());
       i < samples_.size() && samples_[i]->request == id; ++i) {
    Sample& sample = *samples_[i];
    if (sample.ended) continue;
    found = true;
    if (sample.showing)
      sample.cancelled = true;
    else
      finish(sample, FinishReason::kCancelled);
  }
  return found;
}

bool Engine::preempt(int64_t id, int32_t sample) {
  Sample* const found = find(id + sample);
  if (busy_ || found == nullptr || found->request != id || !scheduler_.preempt(found->id))
    return false;
  preempt_row(*found);
  return true;
}

void Engine::preempt_row(Sample& sample) {
  ++stats_.preemptions;
  put_aside(sample);
  if (recorder_) recorder_->gives_back(PoolEventKind::kPreempt, sample);
  take_back(sample);
}

// What the row held is gone; its tokens will be fed again.
void Engine::take_back(Sample& sample) {
  if (prefix_cache_) prefix_cache_->release(sample.chain);
  slots_.give_back(sample.slot);
  sample.slot = -1;
  sample.fed = 0;
}

bool Engine::step() {
  if (busy_) fail("step() was called from within a callback of the engine");
  const EngineClock::time_point begin = options_.now();
  {
    const Busy busy(*this);
    end_those_due(begin);
    const TensorView logits = forward();
    if (!plan_.empty()) deliver(logits);
  }
  if (plan_.empty()) return false;
  ++stats_.steps;
  stats_.last_step_tokens = plan_.tokens();
  stats_.tokens_fed += plan_.tokens();
  stats_.last_step_seconds = seconds_between(begin, options_.now());
  stats_.seconds += stats_.last_step_seconds;
  if (recorder_) recorder_->end_step();
#ifndef NDEBUG
  check_invariants();
#endif
  return !samples_.empty();
}

void Engine::end_those_due(EngineClock::time_point now) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    Sample& sample = *samples_[i];
    if (sample.ended) continue;
    if (!sample.output.running())
      end(sample);  // no new tokens were asked for
    else if (sample.asked->deadline && *sample.asked->deadline <= now)
      finish(sample, FinishReason::kDeadline);
  }
}

// Nothing when nobody is left. Where there is no room the step gets smaller until it fits. Scratch
// is as large as the largest step needed, so first of all scratch of this step's size is tried.
TensorView Engine::forward() {
  bool scratch_fits = false, guess = true;
  int64_t max_tokens = scheduler_.options().max_tokens_per_step;
  while (true) {
    plan_step(max_tokens, guess);
    if (plan_.empty()) return {};
    try {
      return session_.forward(plan_.step(guessed_), plan_.ids(), plan_.logit_rows());
    } catch (const Error& error) {
      take_back_unfed();
      if (!is_no_room(error)) throw;
      ++stats_.no_room;
      if (std::exchange(guessed_, false)) {
        guess = false;
        continue;
      }
      const bool of_memory = error.kind() == ErrorKind::kOutOfMemory;
      if (of_memory) session_.exec().scratch.release();
      if (of_memory && !std::exchange(scratch_fits, true)) continue;
      if (preempt_last()) continue;
      if (plan_.tokens() > 1)
        max_tokens = plan_.tokens() / 2;
      else
        fail_sample(*find(scheduler_.running().front().id), error.what());
    } catch (...) {
      take_back_unfed();
      throw;
    }
  }
}

// `guess`: samples that ask for it put guesses behind their newest token, in the tokens that are
// left of the step.
void Engine::plan_step(int64_t max_tokens, bool guess) {
  plan_.clear();
  planned_.clear();
  guessed_ = false;
  const auto step_limit = [this](int64_t id) {
    const int32_t slot = find(id)->slot;
    return slot < 0 ? slots_.step_limit_of_new() : session_.cache().step_limit(slot);
  };
  const std::span<const Scheduler::Share> shares = scheduler_.plan(step_limit, max_tokens);
  for (const Scheduler::Share& share : shares)
    if (Sample& sample = *find(share.id); sample.slot < 0) take_row(sample);
  guess = guess && can_guess(shares);
  int64_t left = scheduler_.tokens_left();
  for (const Scheduler::Share& share : shares) {
    Sample& sample = *find(share.id);
    planned_.push_back(&sample);
    if (sample.guesses) sample.guesses->clear();
    std::span<const int32_t> guesses;
    if (guess && share.last) guesses = guess_behind(sample, left);
    left -= std::ssize(guesses);
    const auto ids =
        std::span(sample.output.ids())
            .subspan(static_cast<size_t>(sample.fed), static_cast<size_t>(share.count));
    const LogitsOf last = guesses.empty() ? LogitsOf::kLast : LogitsOf::kAll;
    plan_.add(sample.slot, ids, sample.fed, share.last ? last : LogitsOf::kNone, guesses);
  }
}

// After a step that did not happen: who would have begun with it has not.
void Engine::take_back_unfed() {
  for (Sample* const sample : planned_)
    if (sample->fed == 0) take_back(*sample);
}

// False where only one runs.
bool Engine::preempt_last() {
  const auto id = scheduler_.give_way();
  if (!id) return false;
  Sample& sample = *find(*id);
  if (sample.slot >= 0) preempt_row(sample);
  return true;
}

bool Engine::show(Sample& sample, int32_t token, std::string_view text) {
  if (!sample.asked->on_token) return true;
  const bool outer = std::exchange(sample.showing, true);
  try {
    const bool more = sample.asked->on_token({sample.request, sample.index(), token, text});
    sample.showing = outer;
    return more && !sample.cancelled;
  } catch (...) {
    sample.showing = outer;
    throw;
  }
}

void Engine::finish(Sample& sample, FinishReason reason) {
  try {
    if (sample.output.running()) {
      sample.output.finish(
          reason, [&](int32_t id, std::string_view text) { return show(sample, id, text); });
    }
  } catch (const std::exception& error) {
    return fail_sample(sample, error.what());
  } catch (...) {
    return fail_sample(sample, "a callback threw something that is no std::exception");
  }
  end(sample);
}

void Engine::fail_sample(Sample& sample, std::string_view error) {
  sample.output.fail();
  end(sample, error);
}

// Everything that the sample had is free before anybody hears of its end.
void Engine::end(Sample& sample, std::string_view error) {
  sample.ended = true;
  const Result& result = sample.output.result();
  if (recorder_) {
    recorder_->gives_back(PoolEventKind::kEnd, sample, finish_reason_name(result.finish_reason));
  }
  if (sample.slot >= 0) take_back(sample);
  if (swap_) swap_->drop(sample.aside);
  if (sample.queued) scheduler_.remove(sample.id);
  if (sample.leads) stop_leading(sample);
  ++stats_.finished[static_cast<size_t>(result.finish_reason)];
  if (!sample.asked->on_finish) return;
  try {
    sample.asked->on_finish({sample.request, sample.index(), result, error});
  } catch (...) {  // the sample has ended anyway
  }
}

}  // namespace larder
