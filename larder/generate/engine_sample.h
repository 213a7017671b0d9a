// One sample of a request inside an Engine. Only the engine's own files include this.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "larder/generate/engine.h"
#include "larder/generate/speculation.h"

namespace larder {

// What a sample that speculates puts behind its newest token, step by step.
class Engine::Guesses {
 public:
  // `most`: tokens that are wanted of the sample.
  Guesses(const PromptLookupParams& params, int64_t most);

  // Of the step that is planned; none at first.
  std::span<const int32_t> tokens() const { return draft_.tokens; }
  void clear() { draft_.tokens.clear(); }
  void propose(std::span<const int32_t> ids, int64_t most);

  // What the sample chooses behind its newest token and behind each guess that stood. `logits`:
  // [tokens() + 1, vocab_size]. Keeps what a sampler throws for rethrow().
  void choose(RowOutput& output, std::span<float> logits) noexcept;
  std::span<const int32_t> chosen() const { return chosen_; }
  // Of what was fed, that which is behind the prompt and stays: 1 and the guesses that stood.
  int32_t fed() const { return static_cast<int32_t>(std::max<size_t>(chosen_.size(), 1)); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  PromptLookup lookup_;
  Draft draft_;
  std::vector<int32_t> chosen_;
  std::exception_ptr error_;
};

// Without a row while it waits. Its row holds the first `fed` of its ids.
struct Engine::Sample {
  int64_t id = 0;  // the request's, and its number among the samples
  std::shared_ptr<const EngineRequest> asked;
  int64_t request = 0;
  int64_t order = 0;  // in the queue; see Scheduler
  RowOutput output;
  int32_t slot = -1;
  int64_t fed = 0;
  PrefixCache::Chain chain = {};          // of the row's full blocks, where prefixes are cached
  SwapSpace::Row aside = {};              // what its row held when it was preempted
  std::unique_ptr<Guesses> guesses = {};  // null: none are made
  bool leads = false;                     // others of the request begin with a copy of its row
  bool follows = false;                   // begins with a copy of another one's
  bool queued = false;                    // the scheduler knows it
  bool showing = false;                   // its callback runs
  bool cancelled = false;                 // from within it
  bool ended = false;

  // What the planned step feeds behind its tokens.
  std::span<const int32_t> guessed() const {
    return guesses ? guesses->tokens() : std::span<const int32_t>();
  }
  int32_t index() const { return static_cast<int32_t>(id - request); }
};

}  // namespace larder
