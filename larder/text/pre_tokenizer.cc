#include "larder/text/pre_tokenizer.h"

#include <utf8proc.h>

#include "larder/text/byte_level.h"
#include "larder/text/metaspace.h"
#include "larder/text/regex.h"
#include "larder/text/split.h"
#include "larder/text/stage.h"
#include "larder/text/utf8.h"

namespace larder {
namespace {

// Where each character that `is` is lies.
template <class Predicate>
std::vector<Span> chars_where(std::string_view text, Predicate is) {
  std::vector<Span> found;
  for (size_t at = 0; at < text.size();) {
    const CharScan scan = char_at(text, at);
    if (is(scan.code)) found.push_back({at, at + scan.length});
    at += scan.length;
  }
  return found;
}

bool is_number(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return c > 0x20 && c < 0x7F && !(c >= '0' && c <= '9') &&
           !((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

// Cuts at the characters of a kind.
class SplitAtChars : public PreTokenizer {
 public:
  SplitAtChars(bool (*is)(char32_t), SplitBehavior behavior) : is_(is), behavior_(behavior) {}
  void cut(Piece piece, std::vector<Piece>& out) const override {
    split_piece(piece, chars_where(piece.text, is_), behavior_, false, out);
  }

 private:
  bool (*is_)(char32_t);
  SplitBehavior behavior_;
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void cut(Piece piece, std::vector<Piece>& out) const override {
    split_piece(piece, pattern_.find_all(piece.text), behavior_, invert_, out);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// GPT-2's cut into words, then every byte as a character of the byte-level alphabet.
class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<const Regex> regex)
      : add_prefix_space_(add_prefix_space), regex_(std::move(regex)) {}
  void cut(Piece piece, std::vector<Piece>& out) const override {
    if (add_prefix_space_ && !piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
    const size_t first = out.size();
    if (regex_) {
      split_piece(piece, regex_->find_all(piece.text), SplitBehavior::kIsolated, false, out);
    } else {
      out.push_back(std::move(piece));
    }
    for (size_t i = first; i < out.size(); ++i) out[i].text = to_byte_chars(out[i].text);
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<const Regex> regex_;
};

// SentencePiece's way: spaces become a visible character, and one may be put in front.
class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceOptions options)
      : options_(std::move(options)),
        space_(Pattern::literal(" ")),
        mark_(Pattern::literal(options_.replacement)) {}
  void cut(Piece piece, std::vector<Piece>& out) const override {
    piece.text = replace_all(piece.text, space_, options_.replacement);
    const bool prepends = options_.prepend == MetaspaceOptions::kAlways ||
                          (options_.prepend == MetaspaceOptions::kFirst && piece.at_start);
    if (prepends && !piece.text.starts_with(options_.replacement))
      piece.text.insert(0, options_.replacement);
    if (!options_.split) return out.push_back(std::move(piece));
    split_piece(piece, mark_.find_all(piece.text), SplitBehavior::kMergedWithNext, false, out);
  }

 private:
  MetaspaceOptions options_;
  Pattern space_, mark_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  void cut(Piece piece, std::vector<Piece>& out) const override {
    std::vector<Piece> pieces;
    pieces.push_back(std::move(piece));
    for (const auto& step : steps_) pieces = pre_tokenize(*step, std::move(pieces));
    for (Piece& cut : pieces) out.push_back(std::move(cut));
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
};

using Made = std::unique_ptr<const PreTokenizer>;
using Make = Made (*)(const JsonFields&);

Made make_sequence(const JsonFields& fields) {
  std::vector<Made> steps;
  for (const Json& step : required_list(fields, "pretokenizers"))
    steps.push_back(make_pre_tokenizer(&step, fields.what()));
  std::erase(steps, nullptr);
  return std::make_unique<Sequence>(std::move(steps));
}

Made make_byte_level(const JsonFields& fields) {
  constexpr std::string_view kWords =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  std::unique_ptr<const Regex> regex;
  if (flag(fields, "use_regex", true)) regex = std::make_unique<Regex>(kWords, fields.what());
  return std::make_unique<ByteLevel>(flag(fields, "add_prefix_space", true), std::move(regex));
}

Made make_split(const JsonFields& fields) {
  if (!fields.has("behavior")) fail(fields.what(), ": the field \"behavior\" is missing");
  const auto behavior = read_behavior(fields, "behavior", SplitBehavior::kIsolated);
  return std::make_unique<Split>(read_pattern(fields), behavior, flag(fields, "invert", false));
}

Made make_digits(const JsonFields& fields) {
  const bool each = flag(fields, "individual_digits", false);
  return std::make_unique<SplitAtChars>(
      is_number, each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

Made make_punctuation(const JsonFields& fields) {
  return std::make_unique<SplitAtChars>(
      is_punctuation, read_behavior(fields, "behavior", SplitBehavior::kIsolated));
}

Made make_white_space_split(const JsonFields&) {
  return std::make_unique<SplitAtChars>(is_white_space, SplitBehavior::kRemoved);
}

// Words and runs of other visible characters; what lies between goes.
Made make_white_space(const JsonFields& fields) {
  constexpr std::string_view kWords = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|)"
                                      R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";
  return std::make_unique<Split>(Pattern::regex(Regex(kWords, fields.what())),
                                 SplitBehavior::kRemoved, true);
}

Made make_metaspace(const JsonFields& fields) {
  return std::make_unique<Metaspace>(read_metaspace(fields));
}

constexpr StageType<Make> kTypes[] = {
    {"Sequence", make_sequence},
    {"ByteLevel", make_byte_level},
    {"Split", make_split},
    {"Digits", make_digits},
    {"Metaspace", make_metaspace},
    {"Whitespace", make_white_space},
    {"WhitespaceSplit", make_white_space_split},
    {"Punctuation", make_punctuation},
};

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json* spec, const std::string& what) {
  if (!spec || spec->is_null()) return nullptr;
  const JsonFields fields(*spec, what);
  return find_stage<Make>(fields, "pre-tokenizer", kTypes)(fields);
}

std::vector<Piece> pre_tokenize(const PreTokenizer& pre_tokenizer, std::vector<Piece> pieces) {
  std::vector<Piece> out;
  out.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.id >= 0) {
      out.push_back(std::move(piece));
    } else {
      pre_tokenizer.cut(std::move(piece), out);
    }
  }
  return out;
}

}  // namespace larder
