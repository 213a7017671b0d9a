// Cutting a text at matches, in the five ways that tokenizer.json names.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "larder/text/piece.h"
#include "larder/text/regex.h"
#include "larder/text/stage.h"

namespace larder {

enum class SplitBehavior {
  kRemoved,             // matches vanish
  kIsolated,            // each match is a piece
  kMergedWithPrevious,  // each match ends the piece before it
  kMergedWithNext,      // each match begins the piece after it
  kContiguous,          // matches that touch are one piece
};

// Reads the field `key`; `otherwise` if it is absent.
SplitBehavior read_behavior(const JsonFields& fields, std::string_view key,
                            SplitBehavior otherwise);

// Appends the parts of `piece`. With `invert` the text between the matches is what counts as
// matches. Needs: `matches` in order, not overlapping.
void split_piece(const Piece& piece, std::span<const Span> matches, SplitBehavior behavior,
                 bool invert, std::vector<Piece>& out);

}  // namespace larder
