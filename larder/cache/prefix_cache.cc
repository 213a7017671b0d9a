#include "larder/cache/prefix_cache.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/shared_blocks.h"
#include "larder/cache/window.h"

namespace larder {
namespace {

constexpr const char* kWhat = "prefix cache";

// Every entry has a block in each layer that keeps all.
int32_t capacity_of(const Cache& cache) {
  int32_t full = 0;
  for (int32_t l = 0; l < cache.num_layers(); ++l) full += cache.kv(l).sliding_window() == 0;
  return shared_pool(cache, kWhat).pool(0).num_blocks() / std::max(full, 1);
}

}  // namespace

PrefixCache::PrefixCache(Cache& cache, PrefixIndex::Hash hash)
    : cache_(cache),
      layers_(static_cast<size_t>(cache.num_layers())),
      pool_(shared_pool(cache, kWhat)),
      block_size_(cache.kv(0).shared_block_size()),
      index_(capacity_of(cache), block_size_, std::move(hash)),
      blocks_(static_cast<size_t>(index_.capacity()) * layers_) {
  for (int32_t l = 0; l < cache.num_layers(); ++l) window_.push_back(cache.kv(l).sliding_window());
  pool_.on_empty([this] { return reclaim(); });
}

PrefixCache::~PrefixCache() { pool_.on_empty({}); }

std::span<BlockPtr> PrefixCache::blocks_of(int32_t entry) {
  return std::span(blocks_).subspan(static_cast<size_t>(entry) * layers_, layers_);
}

bool PrefixCache::has_full_layers(int32_t entry) {
  const std::span<BlockPtr> blocks = blocks_of(entry);
  for (size_t l = 0; l < layers_; ++l)
    if (window_[l] == 0 && !blocks[l]) return false;
  return true;
}

// Whether layers with a window have what the token behind so many blocks of found_ may see.
bool PrefixCache::has_windows(int64_t blocks) {
  for (size_t l = 0; l < layers_; ++l) {
    for (int64_t i = window_start(window_[l], blocks * block_size_) / block_size_; i < blocks; ++i)
      if (!blocks_of(found_[static_cast<size_t>(i)])[l]) return false;
  }
  return true;
}

// How many blocks a row with this prompt can begin with; found_ has at least their entries.
int64_t PrefixCache::find_usable(int32_t root, std::span<const int32_t> prompt) {
  const auto size = static_cast<size_t>(block_size_);
  found_.clear();
  int32_t entry = root;
  for (size_t at = 0; at + size < prompt.size(); at += size) {
    entry = index_.find(entry, prompt.subspan(at, size));
    if (entry == PrefixIndex::kNone || !has_full_layers(entry)) break;
    found_.push_back(entry);
  }
  auto blocks = static_cast<int64_t>(found_.size());
  while (blocks > 0 && !has_windows(blocks)) --blocks;
  return blocks;
}

PrefixCache::Chain PrefixCache::begin(std::string_view salt) {
  const int32_t root = index_.root(salt);
  index_.pin(root);
  return {root, 0};
}

int64_t PrefixCache::match(std::span<const int32_t> prompt, std::string_view salt) {
  const int32_t root = index_.find_root(salt);
  return root == PrefixIndex::kNone ? 0 : find_usable(root, prompt) * block_size_;
}

// The chain goes on to an entry further behind.
void PrefixCache::move_on(Chain& chain, int32_t entry, int64_t blocks) {
  index_.pin(entry);
  index_.unpin(chain.entry);
  chain = {entry, blocks};
}

void PrefixCache::adopt(int32_t row, std::span<const int32_t> prompt, Chain& chain) {
  LARDER_ASSERT(chain.blocks == 0);
  const int64_t blocks = find_usable(chain.entry, prompt);
  stats_.queried_tokens += static_cast<int64_t>(prompt.size());
  if (blocks == 0) return;
  std::vector<Cache::SharedBlocks> shared(layers_);
  for (size_t l = 0; l < layers_; ++l) {
    shared[l].len = blocks * block_size_;
    shared[l].first_block = window_start(window_[l], blocks * block_size_) / block_size_;
    for (int64_t i = shared[l].first_block; i < blocks; ++i)
      shared[l].blocks.push_back(blocks_of(found_[static_cast<size_t>(i)])[l]);
  }
  cache_.adopt(row, shared);
  move_on(chain, found_[static_cast<size_t>(blocks - 1)], blocks);
  index_.use(chain.entry);
  stats_.hit_tokens += blocks * block_size_;
}

void PrefixCache::record(int32_t row, std::span<const int32_t> ids, Chain& chain) {
  const auto size = static_cast<size_t>(block_size_);
  while (chain.entry != PrefixIndex::kNone &&
         (static_cast<size_t>(chain.blocks) + 1) * size <= ids.size()) {
    const auto tokens = ids.subspan(static_cast<size_t>(chain.blocks) * size, size);
    int32_t entry = index_.add(chain.entry, tokens);
    if (entry == PrefixIndex::kNone && reclaim()) entry = index_.add(chain.entry, tokens);
    if (entry == PrefixIndex::kNone) return;  // full of what rows have; asked again next time
    const std::span<BlockPtr> blocks = blocks_of(entry);
    for (size_t l = 0; l < layers_; ++l)
      if (!blocks[l]) {
        blocks[l] = cache_.kv(static_cast<int32_t>(l)).shared_block(row, chain.blocks);
        tell(PoolEventKind::kCache, blocks[l]);
      }
    move_on(chain, entry, chain.blocks + 1);
  }
}

void PrefixCache::release(Chain& chain) noexcept {
  if (chain.entry != PrefixIndex::kNone) index_.unpin(chain.entry);
  chain = {};
}

bool PrefixCache::let_go(int32_t entry) {
  bool any = false;
  for (BlockPtr& block : blocks_of(entry)) {
    if (block.use_count() != 1) continue;
    tell(PoolEventKind::kEvict, block);
    block.reset();
    ++stats_.evicted_blocks;
    any = true;
  }
  const bool empty =
      std::ranges::none_of(blocks_of(entry), [](const BlockPtr& b) { return bool(b); });
  if (empty && index_.removable(entry)) index_.remove(entry);
  return any;
}

bool PrefixCache::reclaim() {
  for (int32_t entry = index_.next(PrefixIndex::kNone); entry != PrefixIndex::kNone;) {
    const int32_t after = index_.next(entry);
    if (let_go(entry)) return true;
    entry = after;
  }
  return false;
}

int64_t PrefixCache::reclaimable() const {
  return std::ranges::count_if(blocks_,
                               [](const BlockPtr& block) { return block.use_count() == 1; });
}

void PrefixCache::tell(PoolEventKind kind, const BlockPtr& block) const {
  if (pool_.watcher() == nullptr || !block) return;
  const int32_t number = pool_.number_of(*block);
  pool_.watcher()->on_event({.kind = kind, .blocks = {&number, 1}});
}

void PrefixCache::clear() {
  for (BlockPtr& block : blocks_) {
    tell(PoolEventKind::kEvict, block);
    block.reset();
  }
  bool removed = true;
  while (removed) {
    removed = false;
    for (int32_t entry = index_.next(PrefixIndex::kNone); entry != PrefixIndex::kNone;) {
      const int32_t after = index_.next(entry);
      if (index_.removable(entry)) index_.remove(entry), removed = true;
      entry = after;
    }
  }
}

}  // namespace larder
