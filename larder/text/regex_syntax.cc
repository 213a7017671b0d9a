// Regex::to_pcre2: from Oniguruma's Ruby syntax to PCRE2's. Only what the two read differently is
// touched; the rest, and every complaint about it, is left to PCRE2.
#include <array>

#include "larder/base/error.h"
#include "larder/text/regex.h"

namespace larder {
namespace {

struct ClassEscape {
  char letter;
  std::string_view members;
  std::string_view alone;  // members outside a class only
};
// Unicode's White_Space (PCRE2's \s adds U+180E); Oniguruma's word characters (PCRE2 10.42 leaves
// marks and connectors out; Oniguruma counts six numbers of Latin-1, outside of a class only);
// hexadecimal digits (PCRE2's \h is horizontal space).
constexpr std::array<ClassEscape, 3> kClassEscapes = {
    {{'s', R"(\x{9}-\x{d}\x{85}\p{Z})", ""},
     {'w', R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})", R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})"},
     {'h', "0-9A-Fa-f", ""}}};

// What [[:name:]] holds, where PCRE2 has another list.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kPosixClasses = {
    {{"[:alpha:]", R"(\p{Alphabetic})"},
     {"[:alnum:]", R"(\p{Alphabetic}\p{Nd})"},
     {"[:punct:]", R"(\p{P}\p{S})"},
     {"[:space:]", R"(\x{9}-\x{d}\x{85}\p{Z})"},
     {"[:word:]", R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})"}}};

class Rewriter {
 public:
  Rewriter(std::string_view pattern, const std::string& what) : in_(pattern), what_(what) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  void step() {
    const char c = in_[at_];
    if (c == '{' && interval()) return;
    if (c == '?' || c == '*' || c == '+') return copy(1);
    if (c == ')') {
      atom_ = groups_.empty() ? out_.size() : groups_.back();
      if (!groups_.empty()) groups_.pop_back();
      return copy(1);
    }
    atom_ = out_.size();
    if (c == '(') return group();
    if (c == '[') return char_class();
    if (c == '\\') return escape(false);
    copy(1);
  }

  void copy(size_t count) {
    count = std::min(count, in_.size() - at_);
    out_.append(in_.substr(at_, count));
    at_ += count;
  }

  // "{1,3}+" repeats the interval; PCRE2 would read it as possessive.
  bool interval() {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) return false;
    const std::string_view counts = in_.substr(at_ + 1, close - at_ - 1);
    if (counts.empty() || counts.find_first_not_of("0123456789,") != std::string_view::npos)
      return false;
    copy(close + 1 - at_);
    if (at_ < in_.size() && in_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_.push_back(')');
      copy(1);
    }
    return true;
  }

  // Option letters: m of Ruby is s elsewhere.
  void group() {
    groups_.push_back(out_.size());
    copy(1);
    if (at_ >= in_.size() || in_[at_] != '?') return;
    const size_t end = in_.find_first_not_of("imx-", at_ + 1);
    if (end == std::string_view::npos || end == at_ + 1) return copy(1);
    if (in_[end] != ':' && in_[end] != ')') return copy(1);
    copy(1);
    for (; at_ < end; ++at_) out_.push_back(in_[at_] == 'm' ? 's' : in_[at_]);
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return copy(2);
    const char letter = in_[at_ + 1];
    for (const auto& [name, members, alone] : kClassEscapes) {
      const bool negated = letter == name - 'a' + 'A';
      if (letter != name && !negated) continue;
      if (negated && in_class) break;  // a class cannot hold "all but these"
      at_ += 2;
      if (!in_class) out_.append(negated ? "[^" : "[");
      out_.append(members);
      if (!in_class) out_.append(alone).push_back(']');
      return;
    }
    if (!in_class && (letter == 'b' || letter == 'B')) return word_edge(letter == 'b');
    if (in_class && (letter == 'W' || letter == 'H'))
      refuse(str("\\", letter, " inside a character class"));
    copy(2);
    const bool property = letter == 'p' || letter == 'P';
    if ((!property && letter != 'x') || at_ >= in_.size() || in_[at_] != '{') return;
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) return copy(1);
    copy(1);
    const size_t caret = in_[at_] == '^' ? 1 : 0;
    copy(caret);
    // A script means the characters of that script, not those that it shares (PCRE2's default).
    if (property && is_script(in_.substr(at_, close - at_))) out_.append("sc:");
    copy(close + 1 - at_);
  }

  // \b and \B by the same word characters.
  void word_edge(bool edge) {
    const std::string word = str("[", kClassEscapes[1].members, kClassEscapes[1].alone, "]");
    out_.append(edge ? str("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))")
                     : str("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))"));
    at_ += 2;
  }

  static bool is_script(std::string_view name) {
    if (name.size() < 3) return false;  // a general category
    return Regex::compiles(str("\\p{sc:", name, "}"));
  }

  // [:name:] in a class.
  void posix_class() {
    const size_t close = in_.find(":]", at_);
    if (close == std::string_view::npos) return copy(2);
    const std::string_view name = in_.substr(at_, close + 2 - at_);
    for (const auto& [posix, members] : kPosixClasses) {
      if (name != posix) continue;
      out_.append(members);
      at_ += name.size();
      return;
    }
    copy(name.size());
  }

  void char_class() {
    copy(1);
    if (at_ < in_.size() && in_[at_] == '^') copy(1);
    if (at_ < in_.size() && in_[at_] == ']') copy(1);
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '\\') {
        escape(true);
      } else if (in_.substr(at_, 2) == "[:") {
        posix_class();
      } else if (in_[at_] == '[' || in_.substr(at_, 2) == "&&") {
        refuse("a class inside a class");
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  [[noreturn]] void refuse(std::string_view construct) const {
    fail_as(ErrorKind::kUnsupported, what_, ": the expression ", in_quotes(in_), " uses ",
            construct, ", which is not supported");
  }

  std::string_view in_;
  const std::string& what_;
  std::string out_;
  size_t at_ = 0;
  size_t atom_ = 0;             // where in out_ the thing before a quantifier begins
  std::vector<size_t> groups_;  // where in out_ each open group begins
};

}  // namespace

std::string Regex::to_pcre2(std::string_view pattern, const std::string& what) {
  return Rewriter(pattern, what).run();
}

}  // namespace larder
