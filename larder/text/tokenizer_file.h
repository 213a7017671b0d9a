// tokenizer.json as it is parsed: the two long lists apart, the rest as JSON.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "larder/base/json.h"
#include "larder/text/vocabulary.h"

namespace larder {

// "model.vocab" (an object of token -> id) and "model.merges" (a list of "a b" or ["a", "b"]) hold
// nearly all of the file. An ordered JSON object looks for a key by walking all others, which for
// 50,000 of them takes seconds, so the two never become JSON values: in `document` they are absent.
// A vocabulary that is no object (Unigram's list) stays in `document`.
struct TokenizerFile {
  Json document;
  bool has_vocab = false;
  bool has_merges = false;
  std::vector<Vocabulary::Entry> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
};

// Throws Error that begins with `what`: not JSON, nested too deep, a vocabulary or merges of wrong
// types, an id outside 0 .. 2^31 - 1.
TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& what);

}  // namespace larder
