#include "larder/generate/scheduler.h"

#include <algorithm>
#include <cmath>

#include "larder/base/error.h"

namespace larder {
namespace {

// Rows that have their places ahead in the lists; more of them grow the lists once.
constexpr int32_t kMostExpectedRows = 1024;

bool earlier(const Scheduler::Entry& a, const Scheduler::Entry& b) {
  return a.order != b.order ? a.order < b.order : a.id < b.id;
}

void insert(std::vector<Scheduler::Entry>& list, const Scheduler::Entry& entry) {
  list.insert(std::ranges::upper_bound(list, entry, earlier), entry);
}

void check(const SchedulerOptions& options) {
  if (options.max_tokens_per_step < 1 || options.max_tokens_per_step > INT32_MAX)
    fail("max_tokens_per_step ", options.max_tokens_per_step, " must be 1 to ", INT32_MAX);
  if (options.max_running < 1) fail("max_running ", options.max_running, " must be at least 1");
  if (!(options.safety_margin >= 0 && options.safety_margin < 1))
    fail("safety_margin ", options.safety_margin, " must be at least 0 and below 1");
  if (options.steps_per_priority < 0 || options.steps_per_priority > INT32_MAX)
    fail("steps_per_priority ", options.steps_per_priority, " must be 0 to ", INT32_MAX);
}

}  // namespace

SchedulerKind parse_scheduler(std::string_view name) {
  for (const SchedulerKind kind : {SchedulerKind::kFifo, SchedulerKind::kPrefillFirst})
    if (name == scheduler_name(kind)) return kind;
  fail("unknown scheduler ", in_quotes(std::string(name)), "; there are: fifo, prefill_first");
}

std::string_view scheduler_name(SchedulerKind kind) {
  return kind == SchedulerKind::kFifo ? "fifo" : "prefill_first";
}

Scheduler::Scheduler(const SchedulerOptions& options, const PoolView& pool,
                     BeginningView* beginnings)
    : options_(options), pool_(pool), beginnings_(beginnings) {
  check(options_);
  const auto rows = static_cast<size_t>(std::min(options_.max_running, kMostExpectedRows));
  running_.reserve(rows);
  shares_.reserve(rows);
}

int64_t Scheduler::order_of(int32_t priority) const {
  return steps_ + int64_t{priority} * options_.steps_per_priority;
}

void Scheduler::add(const Arrival& arrival) {
  LARDER_ASSERT(arrival.tokens > 0 && arrival.rows > 0);
  insert(waiting_, {arrival.id, arrival.order, 0, arrival.tokens, arrival.rows, State::kWaiting});
}

void Scheduler::remove(int64_t id) {
  const size_t gone = std::erase_if(running_, [id](const Entry& entry) { return entry.id == id; }) +
                      std::erase_if(waiting_, [id](const Entry& entry) { return entry.id == id; });
  LARDER_ASSERT(gone == 1);
  held_back_ = false;
}

std::span<const Scheduler::Share> Scheduler::plan(FunctionRef<int64_t(int64_t)> step_limit,
                                                  int64_t max_tokens) {
  ++steps_;
  shares_.clear();
  budget_ = std::min(options_.max_tokens_per_step, max_tokens);
  const bool prefill_first = options_.kind == SchedulerKind::kPrefillFirst;
  share_out(prefill_first ? State::kPrefill : State::kDecode, step_limit);
  share_out(prefill_first ? State::kDecode : State::kPrefill, step_limit);
  admit(step_limit);
  return shares_;
}

void Scheduler::share_out(State state, FunctionRef<int64_t(int64_t)> step_limit) {
  for (const Entry& entry : running_)
    if (entry.state == state) give(entry, step_limit);
}

void Scheduler::give(const Entry& entry, FunctionRef<int64_t(int64_t)> step_limit) {
  const int64_t left = entry.known - entry.held;
  const int64_t count = std::min({left, budget_, step_limit(entry.id)});
  if (count == 0) return;
  shares_.push_back({entry.id, static_cast<int32_t>(count), count == left});
  budget_ -= count;
}

void Scheduler::admit(FunctionRef<int64_t(int64_t)> step_limit) {
  while (budget_ > 0 && !waiting_.empty()) {
    Entry entry = waiting_.front();
    if (!has_rows_for(entry)) return;  // asked first: a beginning is searched for in the prompt
    const auto beginning =
        beginnings_ ? beginnings_->beginning(entry.id) : std::optional<Beginning>(Beginning{});
    if (!beginning || !has_blocks_for(entry, beginning->shared ? beginning->tokens : 0)) return;
    waiting_.erase(waiting_.begin());
    entry.state = State::kPrefill;
    if (beginnings_) entry.held = beginnings_->begin(entry.id);
    insert(running_, entry);
    give(entry, step_limit);
  }
}

// The first one that cannot begin now holds up those behind it, or small ones would pass it for
// ever.
bool Scheduler::has_rows_for(const Entry& entry) const {
  if (running_.empty()) return true;
  int32_t rows = rows_of(entry);
  for (const Entry& other : running_) rows += rows_of(other);
  return !held_back_ && rows <= options_.max_running;
}

bool Scheduler::has_blocks_for(const Entry& entry, int64_t shared) const {
  const int64_t blocks = pool_.num_blocks();
  if (running_.empty() || blocks == PoolView::kUnbounded) return true;
  const int64_t need = pool_.blocks_for(entry.known + 1) - pool_.blocks_for(shared) +
                       (rows_of(entry) - 1) * pool_.blocks_for(1);
  const auto margin =
      static_cast<int64_t>(std::ceil(options_.safety_margin * static_cast<double>(blocks)));
  return pool_.num_free() - blocks_promised() - need >= margin;
}

// What those that run will still take for their prompts and the token behind them.
int64_t Scheduler::blocks_promised() const {
  int64_t blocks = 0;
  for (const Entry& entry : running_)
    blocks += pool_.blocks_for(entry.known + 1) - pool_.blocks_for(entry.held);
  return blocks;
}

int32_t Scheduler::rows_of(const Entry& entry) const {
  return std::min(entry.rows, options_.max_running);
}

size_t Scheduler::index_of(int64_t id) const {
  const auto found = std::ranges::find(running_, id, &Entry::id);
  LARDER_ASSERT(found != running_.end());
  return static_cast<size_t>(found - running_.begin());
}

void Scheduler::fed(int64_t id, int64_t count) {
  Entry& entry = running_[index_of(id)];
  entry.held += count;
  LARDER_ASSERT(entry.held <= entry.known);
  if (entry.held == entry.known) entry.state = State::kDecode;
}

void Scheduler::grew(int64_t id) { ++running_[index_of(id)].known; }

std::optional<int64_t> Scheduler::give_way() {
  if (running_.size() < 2) return std::nullopt;
  size_t last = running_.size() - 1;
  for (size_t i = 0; i < running_.size(); ++i)
    if (running_[i].held == 0) last = i;
  const int64_t id = running_[last].id;
  send_back(last);
  held_back_ = true;
  return id;
}

bool Scheduler::preempt(int64_t id) {
  const auto found = std::ranges::find(running_, id, &Entry::id);
  if (found == running_.end()) return false;
  send_back(static_cast<size_t>(found - running_.begin()));
  return true;
}

void Scheduler::send_back(size_t index) {
  Entry entry = running_[index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  entry.state = entry.held > 0 ? State::kPreempted : State::kWaiting;
  entry.held = 0;
  insert(waiting_, entry);
}

int32_t Scheduler::rows_left(int64_t id) const { return rows_of(running_[index_of(id)]) - 1; }

void Scheduler::fork(int64_t from, int64_t id) {
  Entry& source = running_[index_of(from)];
  LARDER_ASSERT(rows_of(source) > 1 && source.held == source.known);
  Entry copy = source;
  source.rows = rows_of(source) - 1;
  copy.id = id;
  copy.rows = 1;
  insert(running_, copy);
}

void Scheduler::release_rows(int64_t id) { running_[index_of(id)].rows = 1; }

}  // namespace larder
