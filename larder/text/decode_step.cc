#include "larder/text/decode_step.h"

#include <optional>

#include "larder/text/byte_level.h"
#include "larder/text/metaspace.h"
#include "larder/text/regex.h"
#include "larder/text/utf8.h"

namespace larder {
namespace {

// Bytes that turn into characters as they come.
class Utf8Stream {
 public:
  // How many U+FFFD a broken sequence becomes.
  enum class Broken { kOneEach, kOneAByte };
  explicit Utf8Stream(Broken broken) : broken_(broken) {}

  // Gives the whole characters; an unfinished one at the end is held.
  std::string take(std::string_view bytes) {
    held_.append(bytes);
    std::string text;
    size_t at = 0;
    while (at < held_.size()) {
      const CharScan scan = char_at(held_, at);
      if (scan.kind == CharScan::kShort) break;
      if (scan.kind == CharScan::kWhole) {
        text.append(held_, at, scan.length);
      } else {
        replace(scan.length, text);
      }
      at += scan.length;
    }
    held_.erase(0, at);
    return text;
  }

  std::string finish() {
    std::string text;
    if (!held_.empty()) replace(held_.size(), text);
    held_.clear();
    return text;
  }

  bool holds() const { return !held_.empty(); }

 private:
  void replace(size_t length, std::string& text) const {
    for (size_t i = broken_ == Broken::kOneEach ? 1 : length; i > 0; --i)
      text.append(kReplacementChar);
  }

  Broken broken_;
  std::string held_;  // at most three bytes between calls
};

class ByteLevelStep : public DecodeStep {
 public:
  void take(std::string_view token, TokenSink& out) override {
    out.put(stream_.take(from_byte_chars(token)));
  }
  void finish(TokenSink& out) override { out.put(stream_.finish()); }
  bool has_half_character() const override { return stream_.holds(); }

 private:
  Utf8Stream stream_{Utf8Stream::Broken::kOneEach};
};

std::optional<unsigned char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    const char letter = static_cast<char>(c | 0x20);
    if (!digit && !(letter >= 'a' && letter <= 'f')) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(digit ? c - '0' : letter - 'a' + 10);
  }
  return static_cast<unsigned char>(value);
}

class ByteFallbackStep : public DecodeStep {
 public:
  void take(std::string_view token, TokenSink& out) override {
    if (const auto byte = byte_of(token)) {
      const char c = static_cast<char>(*byte);
      put(stream_.take({&c, 1}), out);
    } else {
      put(stream_.finish(), out);
      out.put(token);
    }
  }
  void finish(TokenSink& out) override { put(stream_.finish(), out); }
  bool has_half_character() const override { return stream_.holds(); }

 private:
  static void put(const std::string& text, TokenSink& out) {
    if (!text.empty()) out.put(text);
  }
  Utf8Stream stream_{Utf8Stream::Broken::kOneAByte};
};

class ReplaceStep : public DecodeStep {
 public:
  ReplaceStep(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void take(std::string_view token, TokenSink& out) override {
    out.put(replace_all(token, *pattern_, content_));
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
};

class MetaspaceStep : public DecodeStep {
 public:
  MetaspaceStep(const MetaspaceOptions& options, bool fused)
      : mark_(Pattern::literal(options.replacement)),
        drops_(options.prepend != MetaspaceOptions::kNever),
        fused_(fused) {}
  void take(std::string_view token, TokenSink& out) override {
    // In the first token every mark goes, not only the one in front.
    const std::string text = replace_all(token, mark_, drops_ ? "" : " ");
    if (!fused_) drops_ = false;
    out.put(text);
  }

 private:
  Pattern mark_;
  bool drops_;
  bool fused_;
};

// Cuts up to `start` and `stop` characters from the ends, as long as they are `content`.
struct StripOptions {
  std::string content;  // one character
  size_t start = 0, stop = 0;
};

class StripStep : public DecodeStep {
 public:
  StripStep(StripOptions options, bool fused)
      : options_(std::move(options)), fused_(fused), start_left_(options_.start) {}
  void take(std::string_view token, TokenSink& out) override {
    if (!fused_) start_left_ = options_.start;
    const std::string& content = options_.content;
    while (start_left_ > 0 && token.starts_with(content)) {
      token.remove_prefix(content.size());
      --start_left_;
    }
    if (!token.empty()) start_left_ = 0;
    // Trailing content may be the end of the text, or not.
    size_t end = token.size();
    size_t trailing = 0;
    while (token.substr(0, end).ends_with(content)) {
      end -= content.size();
      ++trailing;
    }
    if (end > 0) {
      put_held(out, held_);
      out.put(token.substr(0, end));
    }
    held_ += trailing;
    if (held_ > options_.stop) put_held(out, held_ - options_.stop);
    if (!fused_) finish(out);
  }
  void finish(TokenSink& out) override {
    if (held_ > options_.stop) put_held(out, held_ - options_.stop);
    held_ = 0;
  }

 private:
  void put_held(TokenSink& out, size_t count) {
    held_ -= count;
    for (; count > 0; --count) out.put(options_.content);
  }

  StripOptions options_;
  bool fused_;
  size_t start_left_;
  size_t held_ = 0;  // how many `content` at the end have not been put
};

// Keeps everything until the end, then gives it to a step as one token.
class WholeStep : public DecodeStep {
 public:
  explicit WholeStep(std::unique_ptr<DecodeStep> inner) : inner_(std::move(inner)) {}
  void take(std::string_view token, TokenSink&) override { text_.append(token); }
  void finish(TokenSink& out) override {
    inner_->take(text_, out);
    inner_->finish(out);
  }

 private:
  std::unique_ptr<DecodeStep> inner_;
  std::string text_;
};

class JoinSpacesStep : public DecodeStep {
 public:
  void take(std::string_view token, TokenSink& out) override {
    if (!first_) out.put(" ");
    first_ = false;
    out.put(token);
  }

 private:
  bool first_ = true;
};

using Make = void (*)(const JsonFields&, StepList&);

// A step that needs whole tokens.
void add_whole(StepList& steps, StepMaker make) {
  if (!steps.fused) return steps.makers.push_back(std::move(make));
  steps.makers.push_back([make = std::move(make)] { return std::make_unique<WholeStep>(make()); });
}

void add_sequence(const JsonFields& fields, StepList& steps) {
  for (const Json& step : required_list(fields, "decoders"))
    read_decode_steps(step, fields.what(), steps);
}

void add_byte_level(const JsonFields&, StepList& steps) {
  add_whole(steps, [] { return std::make_unique<ByteLevelStep>(); });
  steps.fused = true;
}

void add_byte_fallback(const JsonFields&, StepList& steps) {
  add_whole(steps, [] { return std::make_unique<ByteFallbackStep>(); });
}

void add_replace(const JsonFields& fields, StepList& steps) {
  auto pattern = std::make_shared<const Pattern>(read_pattern(fields));
  add_whole(steps, [pattern, content = required_string(fields, "content")] {
    return std::make_unique<ReplaceStep>(pattern, content);
  });
}

void add_fuse(const JsonFields&, StepList& steps) { steps.fused = true; }

void add_strip(const JsonFields& fields, StepList& steps) {
  StripOptions options;
  options.content = required_string(fields, "content");
  if (options.content.empty() || char_at(options.content, 0).length != options.content.size())
    fields.wrong_type("content", "one character");
  const auto count = [&](std::string_view key) {
    const int64_t value = required(fields.integer(key), fields, key);
    if (value < 0) fields.wrong_type(key, "0 or more");
    return static_cast<size_t>(value);
  };
  options.start = count("start");
  options.stop = count("stop");
  steps.makers.push_back(
      [options, fused = steps.fused] { return std::make_unique<StripStep>(options, fused); });
}

void add_metaspace(const JsonFields& fields, StepList& steps) {
  steps.makers.push_back([options = read_metaspace(fields), fused = steps.fused] {
    return std::make_unique<MetaspaceStep>(options, fused);
  });
}

constexpr StageType<Make> kTypes[] = {
    {"Sequence", add_sequence},
    {"ByteLevel", add_byte_level},
    {"ByteFallback", add_byte_fallback},
    {"Replace", add_replace},
    {"Fuse", add_fuse},
    {"Strip", add_strip},
    {"Metaspace", add_metaspace},
};

}  // namespace

void read_decode_steps(const Json& spec, const std::string& what, StepList& steps) {
  const JsonFields fields(spec, what);
  find_stage<Make>(fields, "decoder", kTypes)(fields, steps);
}

std::unique_ptr<DecodeStep> make_join_spaces() { return std::make_unique<JoinSpacesStep>(); }

}  // namespace larder
