#include "tools/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "larder/base/error.h"

namespace larder::tools {

GgufVocabulary read_vocabulary(const GgufFile& file, int64_t vocab_size) {
  GgufVocabulary vocabulary;
  vocabulary.tokens = file.strings("tokenizer.ggml.tokens");
  if (!vocabulary.tokens) fail(file.name(), ": metadata \"tokenizer.ggml.tokens\" is missing");
  const auto count = static_cast<int64_t>(vocabulary.tokens->size());
  if (count == 0 || count > vocab_size)
    fail(file.name(), ": ", count, " tokens for an embedding of ", vocab_size, " rows");
  for (const std::string_view token : *vocabulary.tokens) {
    const auto id = static_cast<int64_t>(vocabulary.ids.size());
    if (!vocabulary.ids.emplace(token, id).second)
      fail(file.name(), ": token ", in_quotes(token), " stands twice, the second time as ", id);
  }
  vocabulary.kinds.assign(vocabulary.tokens->size(), TokenKind::kNormal);
  const GgufIntegers* types = file.integers("tokenizer.ggml.token_type");
  if (!types) return vocabulary;
  if (types->size() != vocabulary.tokens->size())
    fail(file.name(), ": ", types->size(), " token types for ", count, " tokens");
  for (size_t i = 0; i < types->size(); ++i) {
    if ((*types)[i] < 1 || (*types)[i] > 6)
      fail(file.name(), ": token ", i, " has the unknown type ", (*types)[i]);
    vocabulary.kinds[i] = static_cast<TokenKind>((*types)[i]);
  }
  return vocabulary;
}

std::vector<MergePair> read_merges(const GgufFile& file, const GgufVocabulary& vocabulary) {
  const GgufStrings* merges = file.strings("tokenizer.ggml.merges");
  if (!merges) fail(file.name(), ": metadata \"tokenizer.ggml.merges\" is missing");
  std::vector<MergePair> result;
  result.reserve(merges->size());
  std::string joined;
  for (const std::string_view merge : *merges) {
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos)
      fail(file.name(), ": the merge ", in_quotes(merge), " is not two tokens");
    const MergePair pair{merge.substr(0, space), merge.substr(space + 1)};
    joined.assign(pair.first).append(pair.second);
    for (const std::string_view token : {pair.first, pair.second, std::string_view(joined)}) {
      if (!vocabulary.ids.contains(token)) {
        fail(file.name(), ": the merge ", in_quotes(merge), " needs the token ", in_quotes(token),
             ", which is not in the vocabulary");
      }
    }
    result.push_back(pair);
  }
  return result;
}

std::vector<MergePair> merges_from_scores(const GgufFile& file, const GgufVocabulary& vocabulary) {
  const GgufNumbers* scores = file.numbers("tokenizer.ggml.scores");
  if (!scores || scores->size() != vocabulary.tokens->size()) {
    fail(file.name(), ": ", scores ? scores->size() : 0, " tokenizer.ggml.scores for ",
         vocabulary.tokens->size(), " tokens; merges cannot be derived");
  }
  const auto piece = [&](std::string_view text) -> int64_t {
    const auto it = vocabulary.ids.find(text);
    if (it == vocabulary.ids.end()) return -1;
    return vocabulary.kinds[static_cast<size_t>(it->second)] == TokenKind::kNormal ? it->second
                                                                                   : -1;
  };
  // Best score first; among cuts of one piece, the one of earlier pieces.
  using Ranked = std::tuple<double, int64_t, int64_t, int64_t, MergePair>;
  std::vector<Ranked> ranked;
  constexpr size_t kLongest = 128;  // a piece is a word at most; keeps a hostile file linear
  for (size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    const std::string_view text = (*vocabulary.tokens)[id];
    const double score = (*scores)[id];
    if (vocabulary.kinds[id] != TokenKind::kNormal || text.size() > kLongest) continue;
    if (!std::isfinite(score)) fail(file.name(), ": the score of token ", id, " is not finite");
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const int64_t left = piece(text.substr(0, cut)), right = piece(text.substr(cut));
      if (left < 0 || right < 0) continue;
      ranked.emplace_back(-score, static_cast<int64_t>(id), left, right,
                          MergePair{text.substr(0, cut), text.substr(cut)});
    }
  }
  std::ranges::sort(ranked);
  std::vector<MergePair> merges;
  merges.reserve(ranked.size());
  for (const Ranked& merge : ranked) {
    const MergePair& pair = std::get<MergePair>(merge);
    // tokenizer.json writes a pair with a space between.
    if (pair.first.find(' ') == std::string_view::npos &&
        pair.second.find(' ') == std::string_view::npos)
      merges.push_back(pair);
  }
  return merges;
}

}  // namespace larder::tools
