#include "larder/text/tokenizer_file.h"

#include "larder/base/error.h"
#include "larder/text/stage.h"

namespace larder {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxKeys = 10'000;  // of an object that is no vocabulary; see TokenizerFile

std::pair<std::string, std::string> cut_merge(const std::string& text, size_t index,
                                              const std::string& what) {
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    fail(what, ": model.merges[", index, "] is ", in_quotes(text),
         "; a merge is two tokens with one space between");
  return {text.substr(0, space), text.substr(space + 1)};
}

// The events of nlohmann's parser, in its names. Where a value goes depends on where it stands:
// into the document, the vocabulary, the merges or one merge.
class Reader {
 public:
  // NOLINTBEGIN(readability-identifier-naming): the parser asks for these names
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;
  // NOLINTEND(readability-identifier-naming)

  Reader(TokenizerFile& file, const std::string& what) : file_(file), what_(what) {}

  bool null() { return value(Json()); }
  bool boolean(bool flag) { return value(Json(flag)); }
  bool binary(binary_t&) { return false; }
  bool number_float(number_float_t number, const string_t&) { return value(Json(number)); }
  bool number_integer(number_integer_t number) {
    return place_ == kVocab ? token(number) : value(Json(number));
  }
  bool number_unsigned(number_unsigned_t number) {
    const auto id =
        number > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(number);
    return place_ == kVocab ? token(id) : value(Json(number));
  }

  bool string(string_t& text) {
    if (place_ == kMerges) {
      if (text.starts_with("#version")) return true;  // the first line of an old merges.txt
      file_.merges.push_back(cut_merge(text, file_.merges.size(), what_));
      return true;
    }
    if (place_ != kMerge) return value(Json(std::move(text)));
    if (halves_ > 1) bad_merge();
    auto& [left, right] = file_.merges.back();
    (halves_++ == 0 ? left : right) = std::move(text);
    return true;
  }

  bool key(string_t& name) {
    if (place_ == kDocument && open_.back()->size() >= kMaxKeys)
      fail(what_, ": an object with more than ", kMaxKeys, " keys that is not model.vocab");
    key_ = std::move(name);
    return true;
  }

  bool start_object(size_t) {
    if (place_ == kDocument && in_model() && key_ == "vocab") {
      file_.has_vocab = true;
      place_ = kVocab;
      return true;
    }
    return open(Json::object());
  }
  bool end_object() {
    if (place_ == kVocab) {
      place_ = kDocument;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool start_array(size_t) {
    if (place_ == kDocument && in_model() && key_ == "merges") {
      file_.has_merges = true;
      place_ = kMerges;
      return true;
    }
    if (place_ != kMerges) return open(Json::array());
    place_ = kMerge;
    halves_ = 0;
    file_.merges.emplace_back();
    return true;
  }
  bool end_array() {
    if (place_ == kMerge) {
      if (halves_ != 2) bad_merge();
      place_ = kMerges;
    } else if (place_ == kMerges) {
      place_ = kDocument;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& e) {
    // nlohmann's messages start with "[json.exception.parse_error.101] parse error at ...: ".
    std::string_view text = e.what();
    if (const size_t end = text.find("] "); end != std::string_view::npos)
      text.remove_prefix(end + 2);
    const std::string shown = in_quotes(text, 200);
    fail(what_, ": not valid JSON at byte ", position, ": ", shown.substr(1, shown.size() - 2));
  }

 private:
  enum Place { kDocument, kVocab, kMerges, kMerge };

  // The innermost open object is the document's "model".
  bool in_model() const { return open_.size() == 2 && open_.back()->is_object() && model_open_; }

  [[noreturn]] void bad_merge() const {
    fail(what_, ": model.merges[", file_.merges.empty() ? 0 : file_.merges.size() - 1,
         "] is not two strings");
  }

  bool token(int64_t id) {
    file_.vocab.push_back({key_, checked_id(id, key_, what_)});
    return true;
  }

  // Adds a value to the innermost open container of the document and gives its place there.
  Json* put(Json item) {
    if (place_ == kVocab)
      fail(what_, ": the id of ", in_quotes(key_), " in model.vocab must be a whole number, found ",
           describe(item));
    if (place_ == kMerges)
      fail(what_, ": model.merges[", file_.merges.size(), "] must be two tokens, found ",
           describe(item));
    if (place_ == kMerge) bad_merge();
    if (open_.empty()) {
      file_.document = std::move(item);
      return &file_.document;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(item));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(item);
    return &slot;
  }

  bool value(Json item) {
    put(std::move(item));
    return true;
  }

  bool open(Json container) {
    if (open_.size() >= kMaxDepth)
      fail(what_, ": JSON is nested deeper than ", kMaxDepth, " levels");
    if (open_.size() == 1) model_open_ = key_ == "model";
    open_.push_back(put(std::move(container)));
    return true;
  }

  TokenizerFile& file_;
  const std::string& what_;
  std::vector<Json*> open_;
  std::string key_;
  Place place_ = kDocument;
  int halves_ = 0;
  bool model_open_ = false;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& what) {
  TokenizerFile file;
  Reader reader(file, what);
  Json::sax_parse(text, &reader);
  return file;
}

}  // namespace larder
