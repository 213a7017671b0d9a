// What a text is cut into on its way to ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace larder {

// A piece of the text. One with an id is an added token: no later stage touches it.
struct Piece {
  std::string text;
  // Nothing of the text lies before it ("first" of Metaspace asks). What a normalizer removed from
  // the front of the text does not count.
  bool at_start = false;
  int32_t id = -1;
};

// Appends text[begin, end) of `from`, if it is not empty, as a piece.
inline void cut_piece(std::vector<Piece>& out, const Piece& from, size_t begin, size_t end) {
  if (begin >= end) return;
  out.push_back({from.text.substr(begin, end - begin), from.at_start && begin == 0});
}

}  // namespace larder
