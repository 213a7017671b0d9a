// Text as it is generated: one id in, the text to hand out now.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "larder/text/tokenizer.h"

namespace larder {

struct StreamOptions {
  bool skip_special_tokens = false;
  // Ids that come before the first new one (the prompt). Their text is not handed out, but the new
  // text continues it: a space between the two stays. Read in the constructor only.
  std::span<const int32_t> context = {};
};

// Decodes ids one at a time. Every piece is valid UTF-8, and all pieces joined, finish() included,
// are decode(context + ids) less what the context alone had settled: decode(ids) if there is no
// context. After an id at which the text so far would end in U+FFFD (half a character, as a rule)
// nothing is handed out. A step costs what its own token costs, however long the text has become.
//
// Move-only, for one thread at a time; must not outlive the tokenizer.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, const StreamOptions& options = {});
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // Ids that the tokenizer does not know add nothing.
  std::string push(int32_t id);
  // Gives what was held back: unfinished bytes as U+FFFD. No push may follow.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace larder
