// Many requests over one cache: every step is one forward of whatever is due, prompts and next
// tokens mixed.
#pragma once

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "larder/cache/prefix_cache.h"
#include "larder/cache/swap_space.h"
#include "larder/generate/row_output.h"
#include "larder/generate/scheduler.h"
#include "larder/generate/session.h"
#include "larder/generate/slots.h"
#include "larder/generate/speculation.h"
#include "larder/generate/step_plan.h"

namespace larder {

using EngineClock = std::chrono::steady_clock;

// A new token and the text that may be shown because of it. At the end once more with token -1 for
// each text that was held back. Views are valid during the call.
struct EngineToken {
  int64_t request = 0;
  int32_t sample = 0;
  int32_t token = -1;
  std::string_view text;
};

// How one sample ended. Valid during the call.
struct EngineFinish {
  int64_t request = 0;
  int32_t sample = 0;
  const Result& result;
  std::string_view error;  // why, where result.finish_reason is "error"
};

// Callbacks are called from step() and cancel(). They may call submit() and cancel(). When one of
// on_token throws, its sample ends with the reason "error"; what on_finish throws is dropped.
struct EngineRequest {
  Request request;
  int32_t priority = 0;  // lower ones first; see SchedulerOptions::steps_per_priority
  std::optional<EngineClock::time_point> deadline = {};  // looked at before each step
  // Sample i draws with seed + i. They share what the prompt left in the cache.
  int32_t num_samples = 1;
  // Guesses its next tokens from its own text, and feeds them as far as a step has room: fewer
  // steps for text that repeats itself, the same tokens.
  std::optional<PromptLookupParams> prompt_lookup = {};
  std::string salt = {};  // requests of different salts never share cached prefixes
  std::function<bool(const EngineToken&)> on_token = {};    // false cancels the sample
  std::function<void(const EngineFinish&)> on_finish = {};  // once a sample
};

struct EngineOptions {
  SessionOptions session = {};
  SchedulerOptions scheduler = {};
  // Keeps full blocks of prompts and answers for requests that begin alike (paged cache).
  bool prefix_cache = false;
  // Where rows that are preempted stand aside, to come back as they were (paged cache); empty: the
  // system's temporary folder. Without it they are computed again.
  std::optional<std::filesystem::path> swap_folder = {};
  MakeTokenText make_text = {};  // none: ids only
  std::function<EngineClock::time_point()> now = EngineClock::now;
  // Told of every request, block and step (EventLog writes them down). Must outlive the engine.
  PoolEvents* events = nullptr;
};

// Counts since the engine was made, and what is at the moment. A sample counts as one.
struct EngineStats {
  int64_t submitted = 0;
  std::array<int64_t, kNumFinishReasons> finished = {};  // by FinishReason
  int64_t steps = 0;                                     // forwards that were done
  int64_t no_room = 0;                      // forwards that found no room and were planned again
  int64_t preemptions = 0;                  // rows that were emptied for others
  int64_t swapped_out = 0, swapped_in = 0;  // those of them that stood aside, and came back
  int64_t tokens_fed = 0, new_tokens = 0;
  int64_t guessed = 0, accepted = 0;  // tokens of prompt lookup, of those that were fed
  int64_t waiting = 0, preempted = 0, in_prompt = 0, decoding = 0;
  int64_t num_blocks = 0, free_blocks = 0;  // PoolView::kUnbounded where they are not counted
  // Of num_blocks those that rows have; of free_blocks those that cached prefixes fill until
  // somebody needs them.
  int64_t used_blocks = 0, cached_blocks = 0;
  // Tokens that the blocks of all rows have room for, in all layers, and those of them that hold
  // none. A block that several rows have counts once.
  int64_t slots = 0, unused_slots = 0;
  int64_t last_step_tokens = 0;
  double last_step_seconds = 0, seconds = 0;  // of steps, callbacks included
  PrefixStats prefixes = {};
};

// Every request's tokens and logits are those it would have alone with Generation, whatever the
// budget, scheduler, threads, company or preemption (for cache kinds whose bits do not depend on
// how tokens are fed: docs/numerics.md). A request's failure ends that request alone.
//
// Not thread-safe: one engine, one thread. The allocator must outlive it. A step in which no
// request comes, goes or shows text takes no memory.
class Engine {
 public:
  // Throws Error for options that make no sense, for encoder-decoder models, and for a prefix cache
  // or swapping where the cache cannot have them (with the reason).
  Engine(std::shared_ptr<const Model> model, const EngineOptions& options, Allocator& allocator,
         const CacheRegistry& registry = CacheRegistry());
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Gives the request's id; ids grow. Throws Error for what Generation refuses, and kNoRoom, naming
  // both numbers, for what could never be held. Nothing runs before the next step.
  int64_t submit(const EngineRequest& request);
  // Ends all samples of a request with the reason "cancelled"; false when it has ended or never
  // was.
  bool cancel(int64_t id);
  // One forward. When memory runs out, rows are preempted until what is left fits; a sample that
  // does not fit alone ends with the reason "error". False when no request is left. Throws what is
  // no request's fault (the file of an offloaded cache, say); then tokens and cache are as they
  // were.
  bool step();
  void run() {
    while (step()) {
    }
  }
  // Between steps: empties the row of one sample, which then goes on when its turn comes; false
  // where it has none.
  bool preempt(int64_t id, int32_t sample = 0);

  EngineStats stats() const;
  const Session& session() const { return session_; }
  const PoolView& pool() const { return *pool_; }
  // Null without one. Between steps, for files (prefix_file.h).
  PrefixCache* prefixes() { return prefix_cache_.get(); }
  // Stops the program when rows, queues and cache disagree. For tests and debug builds.
  void check_invariants() const;

 private:
  struct Sample;
  class Guesses;
  class Busy;
  class Beginnings;
  class Recorder;
  Sample* find(int64_t id);
  void check(const EngineRequest& asked, int64_t prompt_tokens, int64_t limit) const;
  void enqueue(Sample& sample, int32_t rows);
  void end_those_due(EngineClock::time_point now);
  TensorView forward();
  void plan_step(int64_t max_tokens, bool guess);
  bool can_guess(std::span<const Scheduler::Share> shares) const;
  std::span<const int32_t> guess_behind(Sample& sample, int64_t most);
  std::unique_ptr<BeginningView> beginning_view();
  void take_row(Sample& sample);
  void put_aside(Sample& sample);
  bool take_in(Sample& sample);
  void record_blocks(Sample& sample);
  void preempt_row(Sample& sample);
  void take_back(Sample& sample);
  void take_back_unfed();
  bool preempt_last();
  void deliver(const TensorView& logits);
  void settle_guesses(const Step& step, const TensorView& logits);
  void take_chosen(Sample& sample);
  void take_next(Sample& sample, std::span<float> logits);
  bool take_token(Sample& sample, int32_t token);
  void take_first_tokens(Sample& leader, std::span<float> logits);
  std::vector<Sample*> fork(Sample& leader);
  std::vector<Sample*> followers_of(const Sample& leader);
  void stop_leading(Sample& leader);
  bool show(Sample& sample, int32_t token, std::string_view text);
  void finish(Sample& sample, FinishReason reason);
  void fail_sample(Sample& sample, std::string_view error);
  void end(Sample& sample, std::string_view error = {});
  void count_slots(EngineStats& stats) const;
  void check_queues() const;

  EngineOptions options_;
  Session session_;
  std::unique_ptr<PrefixCache> prefix_cache_;  // null: none
  std::unique_ptr<SwapSpace> swap_;            // null: none
  std::unique_ptr<BeginningView> beginnings_;
  std::unique_ptr<PoolView> pool_;
  Scheduler scheduler_;
  Slots slots_;
  SamplerScratch sampler_scratch_;
  std::vector<std::unique_ptr<Sample>> samples_;  // in the order of their ids
  StepPlan plan_;
  std::vector<Sample*> planned_;      // of the rows of plan_
  bool guessed_ = false;              // there are guesses in plan_
  std::vector<int32_t> kept_;         // of each row, when guesses are settled
  std::vector<float> prompt_logits_;  // from which all samples of a request choose their first
  bool busy_ = false;
  int64_t next_id_ = 0;
  EngineStats stats_;
  std::unique_ptr<Recorder> recorder_;  // null: nobody wants to know
};

// What is known of the memory of a cache that the registry made. Blocks that only `prefixes` holds
// count as free.
std::unique_ptr<PoolView> view_of_pool(const Cache& cache, const PrefixCache* prefixes = nullptr);

}  // namespace larder
