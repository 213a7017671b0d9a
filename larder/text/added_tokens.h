// Added tokens: strings of a tokenizer.json that are found in a text before anything else is done
// to it (or, if they are `normalized`, right after normalization), each one token.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "larder/base/json.h"
#include "larder/text/normalizer.h"
#include "larder/text/piece.h"
#include "larder/text/regex.h"
#include "larder/text/vocabulary.h"

namespace larder {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no word character stands on either side
  bool lstrip = false;       // takes the white space on its left with it
  bool rstrip = false;
  bool normalized = false;  // matched in the normalized text, its content normalized too
  bool special = false;     // left out by skip_special_tokens
};

// All added tokens of a tokenizer. Immutable; any number of threads may ask.
class AddedTokens {
 public:
  // Reads the list "added_tokens" (nullptr: none). `normalizer` may be null. Throws Error for an id
  // that `model` gives to another token, for one token with two ids, and the like.
  AddedTokens(const Json* list, const Vocabulary& model, const Normalizer* normalizer,
              const std::string& what);

  // Cuts a text: pieces that are added tokens have their id, the others are normalized.
  std::vector<Piece> cut(std::string_view text, const Normalizer* normalizer) const;

  std::optional<int32_t> id(std::string_view token) const { return names_.id(token); }
  std::optional<std::string_view> token(int32_t id) const { return names_.token(id); }
  bool is_special(int32_t id) const;
  int64_t end_id() const { return names_.end_id(); }

 private:
  // Finds the leftmost match, and of those that begin there the longest. A tree over the bytes.
  class Matcher {
   public:
    void add(std::string_view content, size_t token);
    struct Match {
      Span span;
      size_t token;
    };
    // The first match that begins at or after `from`.
    std::optional<Match> find(std::string_view text, size_t from) const;

   private:
    struct Node {
      std::vector<std::pair<unsigned char, uint32_t>> next;  // in order of the byte
      ptrdiff_t token = -1;
    };
    const Node* step(const Node& node, char byte) const;
    std::vector<Node> nodes_{1};
  };

  void read(const Json& list, const Vocabulary& model, const std::string& what);
  void cut_piece_at_tokens(const Piece& piece, const Matcher& matcher,
                           std::vector<Piece>& out) const;
  bool stands_alone(std::string_view text, Span span) const;

  std::vector<AddedToken> tokens_;
  Vocabulary names_;
  std::vector<int32_t> special_ids_;  // in order
  Matcher raw_, normalized_;
  Regex word_char_;
};

}  // namespace larder
