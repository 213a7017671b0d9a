// Regular expressions over UTF-8 text, as tokenizer.json writes them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// Bytes [begin, end) of a text.
struct Span {
  size_t begin, end;
  bool operator==(const Span&) const = default;
};

// A compiled expression. Tokenizer files are written for Oniguruma with Ruby's syntax; this runs
// them on PCRE2 (with UTF and Unicode properties) after `to_pcre2` has rewritten what the two read
// differently. Move-only. Immutable: every search has match data of its own, so many threads may
// search at once. The constructor throws Error that begins with `what` for an expression that does
// not compile. Limit: characters younger than PCRE2's Unicode (14 in 10.42) have no class here.
class Regex {
 public:
  Regex(std::string_view pattern, const std::string& what);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Every match from left to right, none overlapping. An empty match right behind the match before
  // it is left out. Needs: `text` is valid UTF-8. Throws Error if the expression is so costly on
  // this text that the library gives up.
  std::vector<Span> find_all(std::string_view text) const;

  // Oniguruma's meaning spelled for PCRE2: \s and \w by Unicode's lists, \h as a hexadecimal digit,
  // (?m) as "dot matches newline", and x{1,3}+ as (?:x{1,3})+, which is no possessive quantifier
  // there.
  static std::string to_pcre2(std::string_view pattern, const std::string& what);
  // Whether PCRE2 takes an expression as it stands.
  static bool compiles(std::string_view pcre2_pattern);

 private:
  struct Code;
  std::unique_ptr<const Code> code_;
};

// What a Replace or a Split looks for: a text ({"String": ...}) or an expression ({"Regex": ...}).
class Pattern {
 public:
  static Pattern literal(std::string text);
  static Pattern regex(Regex regex);
  std::vector<Span> find_all(std::string_view text) const;

 private:
  std::string literal_;
  std::unique_ptr<const Regex> regex_;
};

class JsonFields;
// Reads the field "pattern".
Pattern read_pattern(const JsonFields& fields);

// The text with every match replaced by `content` as it stands.
std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view content);

}  // namespace larder
