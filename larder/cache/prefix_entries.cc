// What a prefix cache gives to files, and takes from them.
#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/prefix_cache.h"

namespace larder {

std::vector<PrefixCache::Entry> PrefixCache::entries_of(std::string_view salt) {
  std::vector<int32_t> oldest_first;
  for (int32_t entry = index_.next(PrefixIndex::kNone); entry != PrefixIndex::kNone;
       entry = index_.next(entry))
    oldest_first.push_back(entry);
  std::vector<Entry> list;
  std::vector<int64_t> place(static_cast<size_t>(index_.capacity()), -1);
  const int32_t root = index_.find_root(salt);
  for (auto at = oldest_first.rbegin(); at != oldest_first.rend(); ++at) {
    const int32_t parent = index_.parent(*at);
    const int64_t behind = PrefixIndex::is_root(parent) ? -1 : place[static_cast<size_t>(parent)];
    // Of others' salts, or behind one whose blocks are gone.
    if (!has_full_layers(*at) || (behind < 0 && parent != root)) continue;
    place[static_cast<size_t>(*at)] = std::ssize(list);
    const std::span<const int32_t> tokens = index_.tokens(*at);
    Entry& entry = list.emplace_back(Entry{behind, {tokens.begin(), tokens.end()}, {}});
    for (const BlockPtr& block : blocks_of(*at))
      entry.blocks.push_back(block ? block->data() : nullptr);
  }
  return list;
}

int64_t PrefixCache::add_entries(std::string_view salt, std::span<const Entry> entries) {
  std::vector<int32_t> added;
  for (const Entry& from : entries) {
    LARDER_ASSERT(from.blocks.size() == layers_ && from.parent < std::ssize(added));
    const auto need = std::ranges::count_if(from.blocks, [](auto data) { return data != nullptr; });
    if (pool_.pool(0).num_free() < need) break;
    const int32_t entry = index_.add(
        from.parent < 0 ? index_.root(salt) : added[static_cast<size_t>(from.parent)], from.tokens);
    if (entry == PrefixIndex::kNone) break;
    added.push_back(entry);
    for (size_t l = 0; l < layers_; ++l) {
      BlockPtr& block = blocks_of(entry)[l];
      if (block || from.blocks[l] == nullptr) continue;
      block = pool_.make(block_bytes());
      std::memcpy(block->data(), from.blocks[l], block_bytes());
      tell(PoolEventKind::kCache, block);
    }
  }
  // The list begins with the one used last.
  for (auto entry = added.rbegin(); entry != added.rend(); ++entry) index_.use(*entry);
  return std::ssize(added);
}

}  // namespace larder
