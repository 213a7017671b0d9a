// Stop strings over a stream of text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// One a row; fed the generated text (never the prompt) in pieces, gives what may be shown. However
// the text is cut into pieces, the shown text is that of one search over the whole: it ends where
// the match begins that begins first, of two that begin together the earlier listed. What may still
// become a match is held back, and nothing more. A complete match that one with an earlier
// beginning (or the same, and listed earlier) may still overtake is decided by what follows, or by
// finish().
//
// A Knuth-Morris-Pratt automaton a stop string, over bytes: amortised O(stop strings) a byte,
// however long the text. Pieces are UTF-8; if they hold whole characters then so does every text
// given out. Not for two threads at once.
class StopMatcher {
 public:
  // No stop strings: all text passes through. Throws Error naming a stop string that is empty or
  // does not begin with a character.
  explicit StopMatcher(std::vector<std::string> stop_strings);

  struct Shown {
    std::string_view text;  // valid until the next call
    bool stopped;           // nothing will be shown after this
  };
  // After a stop: no text, stopped.
  Shown feed(std::string_view piece);
  // The end of generation for another reason (an end token, the length): gives what was held back,
  // or what stands before an undecided match. Idempotent; text fed after it matches anew.
  Shown finish();

  // Which stop string ended the text, as an index into the list.
  std::optional<size_t> stopped_by() const;
  // Bytes held back at the moment.
  size_t held() const { return held_.size(); }

 private:
  struct Automaton {
    std::string pattern;
    std::vector<uint32_t> border;  // [i]: the longest proper border of the first i bytes
    uint32_t matched = 0;          // bytes of the pattern that the text now ends with
  };
  struct Match {
    size_t begin;  // in bytes of the whole text
    size_t stop;
  };

  void step(char byte);
  // The first byte that a match in the making could begin at.
  size_t first_open(const Automaton& automaton) const { return end_ - automaton.matched; }
  bool decided() const;
  Shown show(size_t until);

  std::vector<Automaton> automata_;
  std::string held_, shown_;
  size_t begin_ = 0, end_ = 0;  // held_ is bytes [begin_, end_) of the whole text
  std::optional<Match> best_;
  bool stopped_ = false;
};

}  // namespace larder
