#include "larder/cache/pool_events.h"

#include <algorithm>
#include <array>

namespace larder {
namespace {

constexpr std::array<std::string_view, 16> kNames = {
    "pool",  "begin", "allocate", "free",     "copy",    "cache",   "evict", "hit",
    "share", "own",   "release",  "swap_out", "swap_in", "preempt", "end",   "step"};

}  // namespace

std::string_view pool_event_name(PoolEventKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<PoolEventKind> pool_event_from_name(std::string_view name) {
  const auto at = std::ranges::find(kNames, name);
  if (at == kNames.end()) return {};
  return static_cast<PoolEventKind>(at - kNames.begin());
}

}  // namespace larder
