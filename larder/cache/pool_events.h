// What happens to the blocks of a pool and to the requests that have them: told to whoever wants to
// know, at no cost where nobody does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace larder {

enum class PoolEventKind : uint8_t {
  kPool,      // the first event: a pool of `count` blocks, all free
  kBegin,     // a request of `count` prompt tokens has come
  kAllocate,  // blocks are taken; who has them is said at the end of the step
  kFree,      // their last holder has gone
  kCopy,      // blocks[1] becomes a copy of blocks[0]: copy on write
  kCache,     // the prefix cache holds them too
  kEvict,     // it no longer does
  kHit,       // the request begins with `count` tokens that were cached, in these blocks
  kShare,     // it begins with the blocks of another sample of its request
  kOwn,       // it has taken these
  kRelease,   // it has let go of these, and goes on
  kSwapOut,   // before kPreempt: its `count` tokens, in these blocks, now stand aside in a file
  kSwapIn,    // it begins with its `count` tokens from there, in these blocks
  kPreempt,   // it has lost all of its blocks, and waits
  kEnd,       // the same, for good; `text` is the reason
  kStep,      // the step is done; it fed `count` tokens
};
std::string_view pool_event_name(PoolEventKind kind);
std::optional<PoolEventKind> pool_event_from_name(std::string_view name);

// Blocks are numbered through all sizes of a pool, those of the smallest size first. Between steps
// the events so far say of every block who has it (PoolState does the sums).
struct PoolEvent {
  static constexpr int64_t kNobody = -1;
  PoolEventKind kind = PoolEventKind::kStep;
  std::span<const int32_t> blocks = {};
  int64_t count = 0;
  int64_t request = kNobody;  // where it is about one
  int32_t sample = 0;
  std::string_view text = {};
  int64_t step = 0;  // in which, or before which; the first is 1
};

// Called in the order of events, on the thread that does them. Views are valid during the call.
// Must not call back.
class PoolEvents {
 public:
  virtual ~PoolEvents() = default;
  virtual void on_event(const PoolEvent& event) noexcept = 0;
};

}  // namespace larder
