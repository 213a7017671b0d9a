// One sample of a request inside an Engine. Only the engine's own files include this.
#pragma once

#include <memory>

#include "larder/generate/engine.h"

namespace larder {

// Without a row while it waits. Its row holds the first `fed` of its ids.
struct Engine::Sample {
  int64_t id = 0;  // the request's, and its number among the samples
  std::shared_ptr<const EngineRequest> asked;
  int64_t request = 0;
  int64_t order = 0;  // in the queue; see Scheduler
  RowOutput output;
  int32_t slot = -1;
  int64_t fed = 0;
  PrefixCache::Chain chain = {};  // of the row's full blocks, where prefixes are cached
  SwapSpace::Row aside = {};      // what its row held when it was preempted
  bool leads = false;             // others of the request begin with a copy of its row
  bool follows = false;           // begins with a copy of another one's
  bool queued = false;            // the scheduler knows it
  bool showing = false;           // its callback runs
  bool cancelled = false;         // from within it
  bool ended = false;

  int32_t index() const { return static_cast<int32_t>(id - request); }
};

}  // namespace larder
