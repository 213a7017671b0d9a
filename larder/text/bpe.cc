#include "larder/text/bpe.h"

#include <queue>

#include "larder/base/error.h"
#include "larder/text/stage.h"
#include "larder/text/utf8.h"

namespace larder {

struct Bpe::Candidate {
  Merge merge;
  int32_t at;  // the left symbol
  // For a heap whose top is the lowest rank, then the leftmost.
  bool operator<(const Candidate& other) const {
    return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : at > other.at;
  }
};

namespace {

void check_type(const JsonFields& model) {
  // Files older than the field hold BPE.
  const std::string type = model.string("type").value_or("BPE");
  if (type != "BPE")
    fail_as(ErrorKind::kUnsupported, model.what(), ": the model ", in_quotes(type),
            " is not supported (supported: BPE)");
}

void check_dropout(const JsonFields& model) {
  if (model.number("dropout").value_or(0) != 0)
    fail_as(ErrorKind::kUnsupported, model.what(),
            ": dropout is not supported: it makes ids random; set it to null");
}

}  // namespace

Bpe::Bpe(TokenizerFile file, const std::string& what) {
  const JsonFields fields(file.document, what);
  const Json* object = fields.object("model");
  if (!object) fail(what, ": the field \"model\" is missing");
  const JsonFields model(*object, what + ": model");
  check_type(model);
  check_dropout(model);
  if (!file.has_vocab && model.has("vocab")) model.wrong_type("vocab", "an object of token -> id");
  if (!file.has_merges && model.has("merges")) model.wrong_type("merges", "a list");
  if (!file.has_vocab) fail(model.what(), ": the field \"vocab\" is missing");
  if (!file.has_merges) fail(model.what(), ": the field \"merges\" is missing");
  vocabulary_ = Vocabulary(std::move(file.vocab), model.what() + ".vocab");
  read_options(model);
  read_merges(file.merges, model.what() + ".merges");
  if (byte_fallback_) read_byte_tokens();
}

void Bpe::read_options(const JsonFields& model) {
  byte_fallback_ = flag(model, "byte_fallback", false);
  fuse_unk_ = flag(model, "fuse_unk", false);
  ignore_merges_ = flag(model, "ignore_merges", false);
  prefix_ = model.string("continuing_subword_prefix").value_or("");
  suffix_ = model.string("end_of_word_suffix").value_or("");
  const auto unk = model.string("unk_token");
  if (!unk) return;
  const auto id = vocabulary_.id(*unk);
  if (!id) fail(model.what(), ": unk_token ", in_quotes(*unk), " is not in the vocabulary");
  unk_id_ = *id;
}

void Bpe::read_merges(const std::vector<std::pair<std::string, std::string>>& merges,
                      const std::string& what) {
  merges_.reserve(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& left = merges[rank].first;
    const std::string& right = merges[rank].second;
    const auto known = [&](const std::string& token) {
      const auto id = vocabulary_.id(token);
      if (!id)
        fail(what, "[", rank, "] (", in_quotes(left), ", ", in_quotes(right), ") needs the token ",
             in_quotes(token), ", which is not in the vocabulary");
      return *id;
    };
    if (right.size() < prefix_.size())
      fail(what, "[", rank, "]: ", in_quotes(right), " lacks the continuing_subword_prefix");
    joined.assign(left).append(right, prefix_.size());
    const Merge merge{static_cast<uint32_t>(rank), known(joined)};
    merges_.insert_or_assign(pair(known(left), known(right)), merge);
  }
}

void Bpe::read_byte_tokens() {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  byte_ids_.assign(256, -1);
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string name = str("<0x", kHex[byte >> 4], kHex[byte & 15], ">");
    byte_ids_[byte] = vocabulary_.id(name).value_or(-1);
  }
}

// All bytes of an unknown character, or none.
bool Bpe::append_bytes(std::string_view character, std::vector<Symbol>& symbols) const {
  if (!byte_fallback_) return false;
  for (const char byte : character)
    if (byte_ids_[static_cast<unsigned char>(byte)] < 0) return false;
  for (const char byte : character)
    symbols.push_back({byte_ids_[static_cast<unsigned char>(byte)], -1, -1, false});
  return true;
}

std::vector<Bpe::Symbol> Bpe::symbols_of(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  // Unknown characters whose token has not been written yet. Bytes of a later character go before
  // it, as in the library that defined the format.
  bool unknown = false;
  const auto write_unknown = [&] {
    if (unknown) symbols.push_back({unk_id_, -1, -1, false});
    unknown = false;
  };
  std::string decorated;
  for (size_t at = 0; at < word.size();) {
    const size_t length = char_at(word, at).length;
    std::string_view character = word.substr(at, length);
    const bool last = at + length == word.size();
    if ((at > 0 && !prefix_.empty()) || (last && !suffix_.empty())) {
      decorated = str(at > 0 ? prefix_ : "", character, last ? suffix_ : "");
      character = decorated;
    }
    if (const auto id = vocabulary_.id(character)) {
      write_unknown();
      symbols.push_back({*id, -1, -1, false});
    } else if (!append_bytes(character, symbols) && unk_id_ >= 0) {
      if (!fuse_unk_) write_unknown();
      unknown = true;
    }
    at += length;
  }
  write_unknown();
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int32_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int32_t>(i + 1) : -1;
  }
  return symbols;
}

void Bpe::merge(std::vector<Symbol>& symbols) const {
  std::vector<Candidate> store;
  store.reserve(symbols.size());
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(store));
  const auto propose = [&](int32_t at) {
    if (at < 0 || symbols[static_cast<size_t>(at)].next < 0) return;
    const Symbol& left = symbols[static_cast<size_t>(at)];
    const auto found = merges_.find(pair(left.id, symbols[static_cast<size_t>(left.next)].id));
    if (found != merges_.end()) heap.push({found->second, at});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) propose(static_cast<int32_t>(i));
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbols[static_cast<size_t>(top.at)];
    if (left.merged || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    // Either side may have merged elsewhere since this was proposed.
    const auto now = merges_.find(pair(left.id, right.id));
    if (now == merges_.end() || now->second.id != top.merge.id) continue;
    left.id = top.merge.id;
    left.next = right.next;
    right.merged = true;
    if (right.next >= 0) symbols[static_cast<size_t>(right.next)].previous = top.at;
    propose(left.previous);
    propose(top.at);
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (const auto id = vocabulary_.id(word)) return ids.push_back(*id);
  }
  if (word.size() > INT32_MAX) fail("a word of ", word.size(), " bytes is too long to encode");
  std::vector<Symbol> symbols = symbols_of(word);
  merge(symbols);
  for (const Symbol& symbol : symbols)
    if (!symbol.merged) ids.push_back(symbol.id);
}

}  // namespace larder
