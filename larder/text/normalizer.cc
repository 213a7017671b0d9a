#include "larder/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "larder/text/byte_level.h"
#include "larder/text/regex.h"
#include "larder/text/stage.h"
#include "larder/text/utf8.h"

namespace larder {
namespace {

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; });
}

std::vector<utf8proc_int32_t> decompose(std::string_view text, utf8proc_option_t options) {
  std::vector<utf8proc_int32_t> chars;
  std::array<utf8proc_int32_t, 32> parts{};  // U+FDFA, the longest, is 18 characters
  int boundary = 0;
  for (size_t at = 0; at < text.size();) {
    const CharScan scan = char_at(text, at);
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(scan.code),
                                               parts.data(), parts.size(), options, &boundary);
    chars.insert(chars.end(), parts.begin(), parts.begin() + count);
    at += scan.length;
  }
  return chars;
}

// Puts each run of marks in canonical order. utf8proc's own ordering takes quadratic time on a long
// run, which a hostile text could use.
void order_marks(std::vector<utf8proc_int32_t>& chars) {
  const auto combining = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (auto at = chars.begin(); at != chars.end();) {
    const auto begin = std::find_if(at, chars.end(), combining);
    const auto end = std::find_if_not(begin, chars.end(), combining);
    std::stable_sort(begin, end, [&](auto a, auto b) { return combining(a) < combining(b); });
    at = end;
  }
}

// NFC, NFD, NFKC and NFKD by utf8proc's tables.
class NormalForm : public Normalizer {
 public:
  NormalForm(bool compatibility, bool compose) : compatibility_(compatibility), compose_(compose) {}
  std::string apply(std::string text) const override {
    if (is_ascii(text)) return text;
    const int options =
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility_ ? UTF8PROC_COMPAT : 0);
    auto chars = decompose(text, static_cast<utf8proc_option_t>(options));
    order_marks(chars);
    if (compose_) {
      const auto count = utf8proc_normalize_utf32(
          chars.data(), static_cast<utf8proc_ssize_t>(chars.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      chars.resize(static_cast<size_t>(count));
    }
    text.clear();
    for (const auto c : chars) append_char(text, static_cast<char32_t>(c));
    return text;
  }

 private:
  bool compatibility_, compose_;
};

class Lowercase : public Normalizer {
 public:
  std::string apply(std::string text) const override {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const CharScan scan = char_at(text, at);
      if (scan.code == 0x130) {  // the one character whose lower case is two
        out.append("i\xCC\x87");
      } else {
        append_char(
            out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(scan.code))));
      }
      at += scan.length;
    }
    return out;
  }
};

class StripAccents : public Normalizer {
 public:
  std::string apply(std::string text) const override {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const CharScan scan = char_at(text, at);
      const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(scan.code));
      const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                        category == UTF8PROC_CATEGORY_ME;
      if (!mark) out.append(text, at, scan.length);
      at += scan.length;
    }
    return out;
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  std::string apply(std::string text) const override {
    size_t begin = text.size();
    size_t end = 0;
    for (size_t at = 0; at < text.size();) {
      const CharScan scan = char_at(text, at);
      if (!is_white_space(scan.code)) {
        begin = std::min(begin, at);
        end = at + scan.length;
      }
      at += scan.length;
    }
    if (!left_) begin = 0;
    if (!right_) end = text.size();
    return begin < end ? text.substr(begin, end - begin) : std::string();
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string text) : prefix_(std::move(text)) {}
  std::string apply(std::string text) const override {
    return text.empty() ? text : prefix_ + text;
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string apply(std::string text) const override {
    return replace_all(text, pattern_, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class ByteChars : public Normalizer {
 public:
  std::string apply(std::string text) const override { return to_byte_chars(text); }
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Normalizer>> steps)
      : steps_(std::move(steps)) {}
  std::string apply(std::string text) const override {
    for (const auto& step : steps_) text = step->apply(std::move(text));
    return text;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

using Made = std::unique_ptr<const Normalizer>;
using Make = Made (*)(const JsonFields&);

template <bool kCompatibility, bool kCompose>
Made make_form(const JsonFields&) {
  return std::make_unique<NormalForm>(kCompatibility, kCompose);
}

Made make_sequence(const JsonFields& fields) {
  std::vector<Made> steps;
  for (const Json& step : required_list(fields, "normalizers"))
    steps.push_back(make_normalizer(&step, fields.what()));
  std::erase(steps, nullptr);
  return std::make_unique<Sequence>(std::move(steps));
}

Made make_strip(const JsonFields& fields) {
  return std::make_unique<Strip>(flag(fields, "strip_left", true),
                                 flag(fields, "strip_right", true));
}

Made make_replace(const JsonFields& fields) {
  return std::make_unique<Replace>(read_pattern(fields), required_string(fields, "content"));
}

constexpr StageType<Make> kTypes[] = {
    {"Sequence", make_sequence},
    {"NFC", make_form<false, true>},
    {"NFD", make_form<false, false>},
    {"NFKC", make_form<true, true>},
    {"NFKD", make_form<true, false>},
    {"Lowercase", [](const JsonFields&) -> Made { return std::make_unique<Lowercase>(); }},
    {"Strip", make_strip},
    {"StripAccents", [](const JsonFields&) -> Made { return std::make_unique<StripAccents>(); }},
    {"Prepend",
     [](const JsonFields& fields) -> Made {
       return std::make_unique<Prepend>(required_string(fields, "prepend"));
     }},
    {"Replace", make_replace},
    {"ByteLevel", [](const JsonFields&) -> Made { return std::make_unique<ByteChars>(); }},
};

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const Json* spec, const std::string& what) {
  if (!spec || spec->is_null()) return nullptr;
  const JsonFields fields(*spec, what);
  return find_stage<Make>(fields, "normalizer", kTypes)(fields);
}

}  // namespace larder
