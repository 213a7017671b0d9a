// Tokens and merges in a GGUF file's metadata, checked.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tools/gguf.h"

namespace larder::tools {

// token_type in GGUF metadata.
enum class TokenKind : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

using MergePair = std::pair<std::string_view, std::string_view>;

// Views point into the GgufFile.
struct GgufVocabulary {
  const GgufStrings* tokens = nullptr;
  std::vector<TokenKind> kinds;  // one a token
  std::unordered_map<std::string_view, int64_t> ids;
};

// Throws Error when there are none or more than `vocab_size`, or a token stands twice.
GgufVocabulary read_vocabulary(const GgufFile& file, int64_t vocab_size);

// tokenizer.ggml.merges. Throws Error for a merge of, or to, a token that is not there.
std::vector<MergePair> read_merges(const GgufFile& file, const GgufVocabulary& vocabulary);

// The merges that SentencePiece's scores stand for: every way to cut a piece into two pieces, the
// best-scored result first.
std::vector<MergePair> merges_from_scores(const GgufFile& file, const GgufVocabulary& vocabulary);

}  // namespace larder::tools
