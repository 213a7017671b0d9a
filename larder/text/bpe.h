// Byte-pair encoding: one word into ids.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "larder/text/tokenizer_file.h"
#include "larder/text/vocabulary.h"

namespace larder {

// The model of a tokenizer.json of type BPE. A word begins as its characters (bytes, where a
// character is unknown and byte_fallback is on); then, while a neighbouring pair has a merge, the
// one of lowest rank, leftmost first, becomes one token. A heap holds the candidates, so a word of
// n characters takes n log n steps. Immutable; any number of threads may encode at once.
class Bpe {
 public:
  // Takes the vocabulary and merges out of `file`. Throws Error (what, value, remedy).
  Bpe(TokenizerFile file, const std::string& what);

  // Appends the ids of one word. Needs: valid UTF-8.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;  // of the token that the pair becomes
  };
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // symbols of the word, -1 at its ends
    bool merged;             // into the one before
  };
  struct Candidate;
  // A pair of ids as one number.
  static uint64_t pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Spreads the bits of a pair: neighbouring ids would otherwise share buckets.
  struct PairHash {
    size_t operator()(uint64_t key) const {
      key = (key ^ (key >> 32)) * 0x9E3779B97F4A7C15u;
      return static_cast<size_t>(key ^ (key >> 29));
    }
  };

  void read_options(const JsonFields& model);
  void read_merges(const std::vector<std::pair<std::string, std::string>>& merges,
                   const std::string& what);
  void read_byte_tokens();
  std::vector<Symbol> symbols_of(std::string_view word) const;
  bool append_bytes(std::string_view character, std::vector<Symbol>& symbols) const;
  void merge(std::vector<Symbol>& symbols) const;

  Vocabulary vocabulary_;
  std::unordered_map<uint64_t, Merge, PairHash> merges_;
  std::vector<int32_t> byte_ids_;  // of <0x00> .. <0xFF>, -1 where there is none
  int32_t unk_id_ = -1;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  std::string prefix_, suffix_;  // continuing_subword_prefix, end_of_word_suffix
};

}  // namespace larder
