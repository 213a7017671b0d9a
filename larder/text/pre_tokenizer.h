// Pre-tokenizers: how tokenizer.json cuts a text into the words that the model sees one at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "larder/base/json.h"
#include "larder/text/piece.h"

namespace larder {

// One pre-tokenizer. Immutable after loading; any number of threads may call it at once.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts one piece that is not empty and has no id, and appends what it becomes.
  virtual void cut(Piece piece, std::vector<Piece>& out) const = 0;
};

// Reads "pre_tokenizer". Supported: Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace,
// WhitespaceSplit, Punctuation. Gives nullptr for null or an absent spec. `what` begins every
// error.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json* spec, const std::string& what);

// Cuts every piece that has no id.
std::vector<Piece> pre_tokenize(const PreTokenizer& pre_tokenizer, std::vector<Piece> pieces);

}  // namespace larder
