#include "larder/cache/pool_state.h"

#include "larder/base/error.h"

namespace larder {
namespace {

// A file that names more would make the reader take memory for nothing.
constexpr int64_t kMostBlocks = int64_t{1} << 24;

}  // namespace

void PoolState::make(int64_t num_blocks) {
  if (num_blocks < 0 || num_blocks > kMostBlocks)
    fail("a pool of ", num_blocks, " blocks; 0 to ", kMostBlocks, " can be shown");
  *this = {};
  blocks_.resize(static_cast<size_t>(num_blocks));
  begun_ = true;
}

void PoolState::apply(const PoolEvent& event) {
  if (event.kind == PoolEventKind::kPool) return make(event.count);
  if (!begun_) fail("the first event is \"", pool_event_name(event.kind), "\" and not \"pool\"");
  if (event.request != PoolEvent::kNobody) apply_to_owner(event);
  for (const int32_t number : event.blocks) {
    if (number < 0 || number >= num_blocks())
      fail("block ", number, " of a pool of ", num_blocks());
    apply_to_block(event, number);
  }
  if (event.kind == PoolEventKind::kCopy) ++totals_.copies;
  if (event.kind != PoolEventKind::kStep) return;
  step_ = event.step;
  totals_.tokens_fed += event.count;
}

void PoolState::apply_to_owner(const PoolEvent& event) {
  const Owner owner{event.request, event.sample};
  switch (event.kind) {
    case PoolEventKind::kBegin:
      if (!owners_.try_emplace(owner).second)
        fail("request ", owner.request, " sample ", owner.sample, " begins twice");
      ++totals_.begun;
      return;
    case PoolEventKind::kHit:
      ++totals_.hits;
      totals_.hit_tokens += event.count;
      return;
    case PoolEventKind::kSwapOut:
      blocks_of(owner);
      aside_[owner] = event.count;
      ++totals_.swapped_out;
      return;
    case PoolEventKind::kSwapIn:
      if (aside_.erase(owner) == 0)
        fail("request ", owner.request, " sample ", owner.sample, " does not stand aside");
      ++totals_.swapped_in;
      return;
    case PoolEventKind::kPreempt:
      ++totals_.preemptions;
      return let_go(owner);
    case PoolEventKind::kEnd:
      ++totals_.ended;
      let_go(owner);
      owners_.erase(owner);
      aside_.erase(owner);
      return;
    default:
      return;
  }
}

void PoolState::apply_to_block(const PoolEvent& event, int32_t number) {
  const Owner owner{event.request, event.sample};
  switch (event.kind) {
    case PoolEventKind::kAllocate:
      if (blocks_[static_cast<size_t>(number)].taken) fail("block ", number, " is taken twice");
      blocks_[static_cast<size_t>(number)].taken = true;
      return;
    case PoolEventKind::kFree:
      for (const Owner& last : taken(number).owners) owners_[last].erase(number);
      blocks_[static_cast<size_t>(number)] = {};
      return;
    case PoolEventKind::kCache:
      taken(number).cached = true;
      return;
    case PoolEventKind::kEvict:
      taken(number).cached = false;
      ++totals_.evictions;
      return;
    case PoolEventKind::kHit:
    case PoolEventKind::kShare:
    case PoolEventKind::kSwapIn:
    case PoolEventKind::kOwn:
      return own(owner, number);
    case PoolEventKind::kRelease:
      blocks_of(owner).erase(number);
      taken(number).owners.erase(owner);
      return;
    default:
      return;
  }
}

PoolState::Block& PoolState::taken(int32_t number) {
  Block& block = blocks_[static_cast<size_t>(number)];
  if (!block.taken) fail("block ", number, " is free");
  return block;
}

std::set<int32_t>& PoolState::blocks_of(Owner owner) {
  const auto at = owners_.find(owner);
  if (at == owners_.end())
    fail("request ", owner.request, " sample ", owner.sample, " has not begun, or has ended");
  return at->second;
}

void PoolState::own(Owner owner, int32_t number) {
  blocks_of(owner).insert(number);
  aside_.erase(owner);  // where it could not come back, its tokens are fed again
  taken(number).owners.insert(owner);
}

void PoolState::let_go(Owner owner) {
  std::set<int32_t>& held = blocks_of(owner);
  for (const int32_t number : held) taken(number).owners.erase(owner);
  held.clear();
}

PoolState::Counts PoolState::counts() const {
  Counts counts;
  for (const Block& block : blocks_)
    ++(!block.taken ? counts.free : block.only_cached() ? counts.cached : counts.used);
  return counts;
}

}  // namespace larder
