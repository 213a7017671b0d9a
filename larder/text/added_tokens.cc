#include "larder/text/added_tokens.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/text/stage.h"
#include "larder/text/utf8.h"

namespace larder {
namespace {

AddedToken read_token(const Json& object, const std::string& what) {
  const JsonFields fields(object, what);
  AddedToken token;
  token.content = required_string(fields, "content");
  token.id = checked_id(required(fields.integer("id"), fields, "id"), token.content, what);
  token.single_word = flag(fields, "single_word", false);
  token.lstrip = flag(fields, "lstrip", false);
  token.rstrip = flag(fields, "rstrip", false);
  token.special = flag(fields, "special", false);
  token.normalized = flag(fields, "normalized", !token.special);
  return token;
}

// Where the character before `end` begins. Needs: valid UTF-8, end > 0.
size_t char_before(std::string_view text, size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

size_t space_begin(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const size_t begin = char_before(text, end);
    if (!is_white_space(char_at(text, begin).code)) break;
    end = begin;
  }
  return end;
}

size_t space_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const CharScan scan = char_at(text, begin);
    if (!is_white_space(scan.code)) break;
    begin += scan.length;
  }
  return begin;
}

void check_against_model(const AddedToken& token, const Vocabulary& model,
                         const std::string& what) {
  const auto id = model.id(token.content);
  if (id && *id != token.id)
    fail(what, ": the token ", in_quotes(token.content), " has the id ", token.id, " here and ",
         *id, " in model.vocab");
  const auto name = model.token(token.id);
  if (name && *name != token.content)
    fail(what, ": the id ", token.id, " of ", in_quotes(token.content), " is that of ",
         in_quotes(*name), " in model.vocab");
}

}  // namespace

void AddedTokens::Matcher::add(std::string_view content, size_t token) {
  if (content.empty()) return;
  uint32_t at = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    auto& next = nodes_[at].next;
    const auto place = std::lower_bound(next.begin(), next.end(), std::pair(byte, uint32_t{0}));
    if (place != next.end() && place->first == byte) {
      at = place->second;
      continue;
    }
    const auto created = static_cast<uint32_t>(nodes_.size());
    next.insert(place, {byte, created});
    nodes_.emplace_back();
    at = created;
  }
  if (nodes_[at].token < 0) nodes_[at].token = static_cast<ptrdiff_t>(token);
}

const AddedTokens::Matcher::Node* AddedTokens::Matcher::step(const Node& node, char c) const {
  const auto byte = static_cast<unsigned char>(c);
  const auto place =
      std::lower_bound(node.next.begin(), node.next.end(), std::pair(byte, uint32_t{0}));
  return place != node.next.end() && place->first == byte ? &nodes_[place->second] : nullptr;
}

std::optional<AddedTokens::Matcher::Match> AddedTokens::Matcher::find(std::string_view text,
                                                                      size_t from) const {
  for (; from < text.size(); ++from) {
    std::optional<Match> longest;
    const Node* node = &nodes_[0];
    for (size_t at = from; at < text.size(); ++at) {
      node = step(*node, text[at]);
      if (!node) break;
      if (node->token >= 0) longest = {{from, at + 1}, static_cast<size_t>(node->token)};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(const Json* list, const Vocabulary& model, const Normalizer* normalizer,
                         const std::string& what)
    // A word character as Unicode's annex 18 has it.
    : word_char_(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])", what) {
  if (list) read(*list, model, what);
  std::vector<Vocabulary::Entry> names;
  for (const AddedToken& token : tokens_) names.push_back({token.content, token.id});
  names_ = Vocabulary(std::move(names), what);
  // Of two tokens that normalization makes equal, a special one wins, then the earlier one.
  for (const bool special : {true, false}) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special != special) continue;
      if (special) special_ids_.push_back(token.id);
      if (token.normalized) {
        normalized_.add(normalizer ? normalizer->apply(token.content) : token.content, i);
      } else {
        raw_.add(token.content, i);
      }
    }
  }
  std::sort(special_ids_.begin(), special_ids_.end());
}

void AddedTokens::read(const Json& list, const Vocabulary& model, const std::string& what) {
  if (!list.is_array()) fail(what, " must be a list, found ", describe(list));
  std::unordered_map<std::string, int32_t> seen;
  for (const Json& object : list) {
    AddedToken token = read_token(object, str(what, "[", seen.size(), "]"));
    check_against_model(token, model, what);
    const auto [place, fresh] = seen.emplace(token.content, token.id);
    if (!fresh && place->second != token.id)
      fail(what, ": the token ", in_quotes(token.content), " has two ids, ", place->second, " and ",
           token.id);
    if (fresh) tokens_.push_back(std::move(token));
  }
}

bool AddedTokens::is_special(int32_t id) const {
  return std::binary_search(special_ids_.begin(), special_ids_.end(), id);
}

bool AddedTokens::stands_alone(std::string_view text, Span span) const {
  const auto is_word = [&](size_t begin) {
    return !word_char_.find_all(text.substr(begin, char_at(text, begin).length)).empty();
  };
  if (span.begin > 0 && is_word(char_before(text, span.begin))) return false;
  return span.end == text.size() || !is_word(span.end);
}

void AddedTokens::cut_piece_at_tokens(const Piece& piece, const Matcher& matcher,
                                      std::vector<Piece>& out) const {
  const std::string_view text = piece.text;
  size_t done = 0;
  size_t from = 0;
  while (const auto match = matcher.find(text, from)) {
    const AddedToken& token = tokens_[match->token];
    Span span = match->span;
    from = span.end;
    // A match that does not count still uses up its text: a shorter token inside is not tried.
    if (token.single_word && !stands_alone(text, span)) continue;
    if (token.lstrip) span.begin = space_begin(text, span.begin, std::min(done, span.begin));
    if (token.rstrip) span.end = space_end(text, span.end);
    cut_piece(out, piece, done, span.begin);
    out.push_back({piece.text.substr(span.begin, span.end - span.begin), false, token.id});
    done = span.end;
  }
  cut_piece(out, piece, done, text.size());
}

std::vector<Piece> AddedTokens::cut(std::string_view text, const Normalizer* normalizer) const {
  std::vector<Piece> raw;
  cut_piece_at_tokens({std::string(text), true}, raw_, raw);
  std::vector<Piece> out;
  for (Piece& piece : raw) {
    if (piece.id >= 0) {
      out.push_back(std::move(piece));
      continue;
    }
    if (normalizer) piece.text = normalizer->apply(std::move(piece.text));
    cut_piece_at_tokens(piece, normalized_, out);
  }
  return out;
}

}  // namespace larder
