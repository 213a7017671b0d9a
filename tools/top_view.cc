#include "tools/top_view.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "larder/base/str.h"

namespace larder::tools {
namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr char kFree = '.', kCached = '+', kShared = '#', kTaken = '?';

char letter_of(int64_t request) {
  return kLetters[static_cast<uint64_t>(request) % kLetters.size()];
}

// Requests whose numbers are near have colours that are far apart.
int colour_of(char symbol) {
  constexpr std::array kColours = {2, 3, 4, 5, 6, 1, 10, 11, 12, 13, 14, 9};
  switch (symbol) {
    case kFree:
      return 8;
    case kCached:
      return 7;
    case kShared:
      return 15;
    default:
      return kColours[static_cast<unsigned char>(symbol) % kColours.size()];
  }
}

char symbol_of(const PoolState::Block& block) {
  if (!block.taken) return kFree;
  if (block.owners.size() > 1) return kShared;
  if (block.owners.size() == 1) return letter_of(block.owners.begin()->request);
  return block.cached ? kCached : kTaken;
}

// That of most of the blocks; the first one's where several are as many.
char symbol_of(std::span<const PoolState::Block> blocks) {
  std::array<size_t, 256> counts{};
  const auto count = [&](char symbol) -> size_t& {
    return counts[static_cast<unsigned char>(symbol)];
  };
  char most = symbol_of(blocks.front());
  for (const PoolState::Block& block : blocks) ++count(symbol_of(block));
  for (const PoolState::Block& block : blocks) {
    const char symbol = symbol_of(block);
    if (count(symbol) > count(most)) most = symbol;
  }
  return most;
}

// With the colour of its first one.
std::string painted(std::string_view symbols, const TopLayout& layout) {
  if (!layout.colour) return std::string(symbols);
  return str("\x1b[38;5;", colour_of(symbols.front()), "m", symbols, "\x1b[0m");
}

// Runs of one symbol together, so that a slow line carries a tenth.
std::string painted_line(std::string_view symbols, const TopLayout& layout) {
  std::string text;
  while (!symbols.empty()) {
    const size_t run = std::min(symbols.find_first_not_of(symbols.front()), symbols.size());
    text += painted(symbols.substr(0, run), layout);
    symbols.remove_prefix(run);
  }
  return text + '\n';
}

std::string counters(const PoolState& pool) {
  const PoolState::Counts counts = pool.counts();
  const PoolState::Totals& totals = pool.totals();
  return str("step ", pool.step(), ": ", pool.num_blocks(), " blocks, ", counts.free, " free, ",
             counts.used, " used, ", counts.cached, " cached\n", totals.begun - totals.ended,
             " requests, ", totals.ended, " ended; ", totals.tokens_fed, " tokens fed; ",
             totals.hits, " hits of ", totals.hit_tokens, " tokens\n", totals.preemptions,
             " preemptions, ", totals.swapped_out, " of them swapped out, ", totals.swapped_in,
             " back in; ", totals.evictions, " evictions, ", totals.copies, " copies\n");
}

std::string cells(const PoolState& pool, const TopLayout& layout) {
  const std::span<const PoolState::Block> blocks = pool.blocks();
  const auto columns = static_cast<size_t>(std::max<int64_t>(layout.columns, 1));
  const size_t most = columns * static_cast<size_t>(std::max<int64_t>(layout.rows, 1));
  const size_t each = std::max<size_t>((blocks.size() + most - 1) / most, 1);
  std::string text, line;
  for (size_t at = 0; at < blocks.size(); at += each) {
    line += symbol_of(blocks.subspan(at, std::min(each, blocks.size() - at)));
    if (line.size() < columns && at + each < blocks.size()) continue;
    text += painted_line(line, layout);
    line.clear();
  }
  const std::string per_cell = each == 1 ? "" : str("; a cell is ", each, " blocks, as most are");
  return str(text, kFree, " free  ", kCached, " cached  ", kShared, " shared", per_cell, "\n");
}

std::string legend_line(const PoolState& pool, PoolState::Owner owner,
                        const std::set<int32_t>& held, const TopLayout& layout) {
  const auto shared = std::ranges::count_if(held, [&](int32_t number) {
    return pool.blocks()[static_cast<size_t>(number)].owners.size() > 1;
  });
  const auto aside = pool.aside().find(owner);
  const std::string waits =
      aside == pool.aside().end() ? "waits" : str("waits, ", aside->second, " tokens aside");
  const std::string sample = owner.sample == 0 ? "" : str(" sample ", owner.sample);
  const char letter = letter_of(owner.request);
  return str(painted({&letter, 1}, layout), " request ", owner.request, sample, ": ",
             held.empty() ? waits : str(held.size(), " blocks, ", shared, " shared"), "\n");
}

}  // namespace

TopLayout layout_for(const ScreenSize& screen, int64_t others) {
  constexpr int64_t kFixed = 6;  // counters, the key, those that are not listed, the cursor
  TopLayout layout;
  layout.colour = true;
  layout.columns = screen.columns;
  layout.rows = std::max<int64_t>(screen.rows / 2, 1);
  layout.legend = std::max<int64_t>(screen.rows - layout.rows - kFixed - others, 1);
  return layout;
}

std::string draw_pool(const PoolState& pool, const TopLayout& layout) {
  std::string text = counters(pool);
  text += pool.num_blocks() == 0 ? "the cache has no pool of blocks\n" : cells(pool, layout);
  // Those that have most come first.
  using Entry = std::pair<PoolState::Owner, const std::set<int32_t>*>;
  std::vector<Entry> entries;
  for (const auto& [owner, held] : pool.owners()) entries.emplace_back(owner, &held);
  std::ranges::stable_sort(entries, std::greater(),
                           [](const Entry& entry) { return entry.second->size(); });
  const size_t listed =
      std::min(entries.size(), static_cast<size_t>(std::max<int64_t>(layout.legend, 0)));
  for (size_t i = 0; i < listed; ++i)
    text += legend_line(pool, entries[i].first, *entries[i].second, layout);
  if (listed < entries.size()) text += str("and ", entries.size() - listed, " more\n");
  return text;
}

}  // namespace larder::tools
