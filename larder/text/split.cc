#include "larder/text/split.h"

#include <algorithm>

namespace larder {
namespace {

struct Cut {
  Span span;
  bool is_match;
};

std::vector<Cut> cuts_of(size_t size, std::span<const Span> matches, bool invert) {
  std::vector<Cut> cuts;
  size_t done = 0;
  for (const Span& match : matches) {
    if (done != match.begin) cuts.push_back({{done, match.begin}, invert});
    cuts.push_back({match, !invert});
    done = match.end;
  }
  if (done != size) cuts.push_back({{done, size}, invert});
  return cuts;
}

// Joins each cut to the last one kept where `joins(this is a match, the one before was)` says so.
template <class Joins>
void join_cuts(std::vector<Cut>& cuts, Joins joins) {
  bool previous = false;
  size_t kept = 0;
  for (const Cut cut : cuts) {
    if (kept > 0 && joins(cut.is_match, previous)) {
      Span& last = cuts[kept - 1].span;
      last = {std::min(last.begin, cut.span.begin), std::max(last.end, cut.span.end)};
    } else {
      cuts[kept++] = cut;
    }
    previous = cut.is_match;
  }
  cuts.resize(kept);
}

}  // namespace

SplitBehavior read_behavior(const JsonFields& fields, std::string_view key,
                            SplitBehavior otherwise) {
  const auto name = fields.string(key);
  if (!name) return otherwise;
  if (*name == "Removed") return SplitBehavior::kRemoved;
  if (*name == "Isolated") return SplitBehavior::kIsolated;
  if (*name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (*name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (*name == "Contiguous") return SplitBehavior::kContiguous;
  fields.wrong_type(key, "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void split_piece(const Piece& piece, std::span<const Span> matches, SplitBehavior behavior,
                 bool invert, std::vector<Piece>& out) {
  std::vector<Cut> cuts = cuts_of(piece.text.size(), matches, invert);
  const auto ends_a_piece = [](bool match, bool previous) { return match && !previous; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(cuts, [](const Cut& cut) { return cut.is_match; });
      break;
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kContiguous:
      join_cuts(cuts, [](bool match, bool previous) { return match == previous; });
      break;
    case SplitBehavior::kMergedWithPrevious:
      join_cuts(cuts, ends_a_piece);
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(cuts.begin(), cuts.end());
      join_cuts(cuts, ends_a_piece);
      std::reverse(cuts.begin(), cuts.end());
      break;
  }
  for (const Cut& cut : cuts) cut_piece(out, piece, cut.span.begin, cut.span.end);
}

}  // namespace larder
