// A model with everything that one generation needs beside it: cache, scratch, threads, kernel set.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "larder/base/error.h"
#include "larder/cache/registry.h"
#include "larder/models/model.h"

namespace larder {

struct SessionOptions {
  std::string cache_implementation = "dynamic";
  std::optional<DType> cache_dtype = {};  // nullopt = the model's dtype
  int64_t max_cache_len = 0;              // tokens a row, for the kinds of fixed size
  AttentionKind attention = AttentionKind::kFused;
  int threads = 0;                // 0 = the cores this process may use
  std::string kernels = {};       // empty = the fastest set of this machine
  std::string cache_config = {};  // the cache kind's own settings: a JSON object, or empty
  int64_t rollback = 0;           // see CacheOptions
  bool pin_threads = false;       // each to a core of its own; see ThreadPool
};

// Keeps its model alive. Several sessions may share one model and run at once, each on a thread of
// its own; one session is for one thread at a time. `allocator` gives the cache and the scratch,
// and must outlive the session.
class Session {
 public:
  Session(std::shared_ptr<const Model> model, const SessionOptions& options, Allocator& allocator,
          const CacheRegistry& registry = CacheRegistry());
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Model& model() const { return *model_; }
  const CacheOptions& cache_options() const { return cache_options_; }
  Cache& cache() { return cache_; }
  const Cache& cache() const { return cache_; }
  Exec& exec() { return exec_; }
  Allocator& allocator() { return allocator_; }
  int64_t rollback() const { return cache_options_.rollback; }  // see CacheOptions

  // One step of the model over this session's cache; see Model::forward.
  TensorView forward(const Step& step, std::span<const int32_t> ids,
                     std::span<const int32_t> logit_rows);
  // Cache::shift of this session's cache, with the relief of a step.
  void shift(int32_t row, std::span<const ContextShift> shifts);
  // Called when a step runs out of memory; true tries the step again (CacheLadder).
  void on_out_of_memory(std::function<bool(const OutOfMemory&)> relief) {
    relief_ = std::move(relief);
  }
  // Encoder-decoder models: the sources of new rows; see Model::encode.
  void encode(const Step& step, std::span<const int32_t> ids) {
    model_->encode(exec_, step, ids, cache_, attention_);
  }
  // Empties the cache: the next generation starts anew.
  void reset() noexcept { cache_.reset(); }

 private:
  template <class Action>
  auto with_relief(const Action& action);

  std::shared_ptr<const Model> model_;
  Allocator& allocator_;
  AttentionKind attention_;
  CacheOptions cache_options_;
  Cache cache_;
  Arena scratch_;
  ThreadPool threads_;
  Exec exec_;
  std::function<bool(const OutOfMemory&)> relief_;
};

}  // namespace larder
