#include "larder/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "larder/base/error.h"
#include "larder/text/stage.h"
#include "larder/text/utf8.h"

namespace larder {
namespace {

template <auto Free>
struct Freeing {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using CodePointer = std::unique_ptr<pcre2_code, Freeing<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freeing<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freeing<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freeing<pcre2_compile_context_free>>;

template <class T>
T* not_null(T* pointer) {
  if (!pointer) throw std::bad_alloc();
  return pointer;
}

std::string reason(int error) {
  PCRE2_UCHAR text[200];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

CodePointer compile(std::string_view pattern, std::string& error) {
  const CompileContext context(not_null(pcre2_compile_context_create(nullptr)));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int number = 0;
  PCRE2_SIZE at = 0;
  // ^ and $ stand at every line in Ruby's syntax.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  CodePointer code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 options, &number, &at, context.get()));
  if (!code) error = reason(number);
  return code;
}

}  // namespace

struct Regex::Code {
  CodePointer code;
  std::string shown;
};

Regex::Regex(std::string_view pattern, const std::string& what) {
  std::string error;
  CodePointer code = compile(to_pcre2(pattern, what), error);
  if (!code) fail(what, ": the expression ", in_quotes(pattern), " is not valid: ", error);
  // Without a compiler for this machine the interpreter does the same, only slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  code_ = std::make_unique<const Code>(Code{std::move(code), in_quotes(pattern)});
}

bool Regex::compiles(std::string_view pcre2_pattern) {
  std::string error;
  return compile(pcre2_pattern, error) != nullptr;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<Span> Regex::find_all(std::string_view text) const {
  const MatchData data(not_null(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr)));
  const MatchContext context(not_null(pcre2_match_context_create(nullptr)));
  // A long run of spaces may honestly take a few steps a byte; more is a runaway expression.
  const size_t steps = size_t{10'000'000} + 16 * text.size();
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
  std::vector<Span> found;
  size_t from = 0;
  size_t last_end = std::string_view::npos;
  while (from <= text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         from, PCRE2_NO_UTF_CHECK | options, data.get(), context.get());
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      fail("the expression ", code_->shown, " failed on a text of ", text.size(),
           " bytes: ", reason(result));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    const Span span{ends[0], ends[1]};
    from = span.end;
    if (span.begin >= span.end && span.end == last_end) {
      from += from < text.size() ? char_at(text, from).length : 1;
      continue;
    }
    last_end = span.end;
    found.push_back(span);
  }
  return found;
}

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(Regex regex) {
  Pattern pattern;
  pattern.regex_ = std::make_unique<const Regex>(std::move(regex));
  return pattern;
}

std::vector<Span> Pattern::find_all(std::string_view text) const {
  if (regex_) return regex_->find_all(text);
  std::vector<Span> found;
  for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos;) {
    found.push_back({at, at + literal_.size()});
    at += literal_.size();
  }
  return found;
}

Pattern read_pattern(const JsonFields& fields) {
  const Json* pattern = fields.object("pattern");
  if (!pattern) fail(fields.what(), ": the field \"pattern\" is missing");
  const JsonFields inner(*pattern, fields.what() + ".pattern");
  if (auto regex = inner.string("Regex")) return Pattern::regex(Regex(*regex, inner.what()));
  auto text = inner.string("String");
  if (!text) fail(inner.what(), ": expected {\"String\": ...} or {\"Regex\": ...}");
  if (text->empty())
    fail(inner.what(), ": an empty String matches nothing useful; remove the stage");
  return Pattern::literal(*std::move(text));
}

std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view content) {
  std::string out;
  size_t done = 0;
  for (const Span& span : pattern.find_all(text)) {
    out.append(text.substr(done, span.begin - done)).append(content);
    done = span.end;
  }
  return out.append(text.substr(done));
}

}  // namespace larder
