// Who takes part in an engine's next step, and with how many tokens. Ids and counts only: no
// tensors, no model.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "larder/generate/pool_view.h"
#include "larder/tensor/thread_pool.h"

namespace larder {

// Names and orders are those of transformers' continuous batching.
enum class SchedulerKind : uint8_t {
  kFifo,          // those that decode, those whose prompt has begun, those that wait
  kPrefillFirst,  // those whose prompt has begun, those that decode, those that wait
};
SchedulerKind parse_scheduler(std::string_view name);  // "fifo", "prefill_first"
std::string_view scheduler_name(SchedulerKind kind);

struct SchedulerOptions {
  SchedulerKind kind = SchedulerKind::kFifo;
  int64_t max_tokens_per_step = 512;  // a longer prompt is fed in several steps
  int32_t max_running = 64;           // rows at once
  // While others run, nobody begins who would leave less than this share of the blocks free: what
  // runs grows into it.
  double safety_margin = 0.1;
  // A request of priority p lets those of priority q < p pass that came at most (p - q) times this
  // many steps after it; so nobody waits for ever.
  int64_t steps_per_priority = 100;
};

// A request is here from add() to remove(). Within each of the kinds' groups the order is that of
// arrival and priority, and it never changes: the first in it is never preempted for want of room,
// nobody who waits is passed by a later one, and a preempted request has its old place; so every
// request gets its turn in bounded time.
//
// Not thread-safe. Allocates in add(), and nothing in plan(), fed() and grew().
class Scheduler {
 public:
  // Throws Error for numbers that make no sense. The views must outlive this; `beginnings` null:
  // there are none.
  Scheduler(const SchedulerOptions& options, const PoolView& pool,
            BeginningView* beginnings = nullptr);

  struct Arrival {
    int64_t id = 0;      // later requests have greater ones
    int64_t order = 0;   // as order_of() gave it
    int64_t tokens = 1;  // to be fed before the first new one
    int32_t rows = 1;    // that it will fork into when its prompt is through
  };
  // The place of a request of that priority that comes now.
  int64_t order_of(int32_t priority) const;
  void add(const Arrival& arrival);
  void remove(int64_t id);

  struct Share {
    int64_t id;
    int32_t count;  // of its next tokens
    bool last;      // there is none behind them yet: the next one is to be chosen
  };
  // The next step: at most max_tokens_per_step tokens and max_tokens, of each request at most
  // step_limit(id). Requests that wait begin here. Empty only when nobody is left. Valid until the
  // next call.
  std::span<const Share> plan(FunctionRef<int64_t(int64_t id)> step_limit,
                              int64_t max_tokens = std::numeric_limits<int64_t>::max());
  // How many more tokens would fit into the step that plan() gave.
  int64_t tokens_left() const { return budget_; }
  // The request's row has `count` tokens more.
  void fed(int64_t id, int64_t count);
  // One more token of the request is known.
  void grew(int64_t id);

  // The step found no room: the last in the order goes back to the queue, of those first that have
  // no token fed; gives its id. Nobody begins again before a request has been removed (or nobody
  // runs). nullopt when only one runs, which then can never go on.
  std::optional<int64_t> give_way();
  // Sends one back to the queue with its row empty; false where it has not begun.
  bool preempt(int64_t id);
  // Rows that fork() may still take for the request.
  int32_t rows_left(int64_t id) const;
  // A copy of the request `from`, with a row of the same tokens, runs as `id`.
  void fork(int64_t from, int64_t id);
  void release_rows(int64_t id);  // it will fork no more

  enum class State : uint8_t { kWaiting, kPreempted, kPrefill, kDecode };
  struct Entry {
    int64_t id = 0, order = 0;
    int64_t held = 0;   // tokens in its row
    int64_t known = 0;  // tokens so far, prompt and new ones
    int32_t rows = 1;   // its own and those that it will fork into
    State state = State::kWaiting;
  };
  std::span<const Entry> running() const { return running_; }
  std::span<const Entry> waiting() const { return waiting_; }  // preempted ones too
  const SchedulerOptions& options() const { return options_; }

 private:
  void share_out(State state, FunctionRef<int64_t(int64_t)> step_limit);
  void give(const Entry& entry, FunctionRef<int64_t(int64_t)> step_limit);
  void admit(FunctionRef<int64_t(int64_t)> step_limit);
  bool has_rows_for(const Entry& entry) const;
  bool has_blocks_for(const Entry& entry, int64_t shared) const;
  int64_t blocks_promised() const;
  int32_t rows_of(const Entry& entry) const;
  void send_back(size_t index);
  size_t index_of(int64_t id) const;

  const SchedulerOptions options_;
  const PoolView& pool_;
  BeginningView* const beginnings_;
  std::vector<Entry> running_, waiting_;  // each in its order
  std::vector<Share> shares_;
  int64_t budget_ = 0;  // tokens left in the step that is planned
  int64_t steps_ = 0;
  bool held_back_ = false;
};

}  // namespace larder
