#include "larder/base/json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

#include "larder/base/error.h"

namespace larder {
namespace {

constexpr int kMaxDepth = 64;
// Objects keep their order in a list that is searched key by key, so their size is bounded too.
constexpr int kMaxKeys = 50'000;

// Depth and breadth are checked before parsing, so that no part of the parser sees a hostile
// document.
void check_shape(std::string_view text, const std::string& what) {
  int depth = 0;
  std::array<int, kMaxDepth + 1> keys{};  // of the object that is open at each depth
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) fail(what, ": JSON is nested deeper than ", kMaxDepth, " levels");
      keys[static_cast<size_t>(depth)] = 0;
    } else if (c == ']' || c == '}') {
      depth = std::max(depth - 1, 0);  // one too many is the parser's to refuse
    } else if (c == ':' && ++keys[static_cast<size_t>(depth)] > kMaxKeys) {
      fail(what, ": a JSON object has more than ", kMaxKeys, " keys");
    }
  }
}

// nlohmann's messages start with "[json.exception.parse_error.101] "; people need what follows.
std::string plain_message(const char* message) {
  std::string_view text = message;
  if (const size_t end = text.find("] "); end != std::string_view::npos)
    text.remove_prefix(end + 2);
  const std::string masked = in_quotes(text, 200);
  return masked.substr(1, masked.size() - 2);
}

// Refuses an object that names a key twice; one set of keys per open object.
class DuplicateCheck {
 public:
  explicit DuplicateCheck(const std::string& what) : what_(what) {}
  bool operator()(int /*depth*/, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key && !open_.back().insert(parsed.get<std::string>()).second) {
      fail(what_, ": the key ", in_quotes(parsed.get<std::string>()),
           " stands twice in one object");
    }
    return true;
  }

 private:
  const std::string& what_;
  std::vector<std::unordered_set<std::string>> open_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& what, DuplicateKeys duplicates) {
  check_shape(text, what);
  // The parser takes a zero byte for the end of its input and would not look at what follows.
  if (text.find('\0') != std::string_view::npos)
    fail(what, ": not valid JSON: it holds a zero byte");
  try {
    if (duplicates == DuplicateKeys::kLastWins) return Json::parse(text);
    return Json::parse(text, DuplicateCheck(what));
  } catch (const Json::exception& e) {
    fail(what, ": not valid JSON: ", plain_message(e.what()));
  }
}

std::string describe(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return value.dump();
}

JsonFields::JsonFields(const Json& object, std::string what)
    : object_(object), what_(std::move(what)) {
  if (!object.is_object()) fail(what_, ": expected a JSON object, found ", describe(object));
}

const Json* JsonFields::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() ? nullptr : &*it;
}

bool JsonFields::has(std::string_view key) const { return find(key) != nullptr; }

bool JsonFields::is_null(std::string_view key) const {
  const Json* value = find(key);
  return value && value->is_null();
}

void JsonFields::wrong_type(std::string_view key, std::string_view expected) const {
  fail(what_, ": ", key, " must be ", expected, ", found ", describe(*find(key)));
}

namespace {

const Json* present(const JsonFields& fields, std::string_view key) {
  const Json* value = fields.find(key);
  return value && !value->is_null() ? value : nullptr;
}

std::optional<int64_t> whole(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (std::floor(number) != number || std::abs(number) > 9e15) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

std::optional<int64_t> JsonFields::integer(std::string_view key) const {
  const Json* value = present(*this, key);
  if (!value) return std::nullopt;
  const auto result = whole(*value);
  if (!result) wrong_type(key, "a whole number");
  return result;
}

std::optional<double> JsonFields::number(std::string_view key) const {
  const Json* value = present(*this, key);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_type(key, "a number");
  return value->get<double>();
}

std::optional<bool> JsonFields::boolean(std::string_view key) const {
  const Json* value = present(*this, key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong_type(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::string(std::string_view key) const {
  const Json* value = present(*this, key);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong_type(key, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<int64_t>> JsonFields::integers(std::string_view key) const {
  const Json* value = present(*this, key);
  if (!value) return std::nullopt;
  std::vector<int64_t> result;
  const auto add = [&](const Json& item) {
    const auto number = whole(item);
    if (!number) wrong_type(key, "a whole number or a list of them");
    result.push_back(*number);
  };
  if (value->is_array()) {
    for (const Json& item : *value) add(item);
  } else {
    add(*value);
  }
  return result;
}

std::optional<std::vector<std::string>> JsonFields::strings(std::string_view key) const {
  const Json* value = present(*this, key);
  if (!value) return std::nullopt;
  if (!value->is_array()) wrong_type(key, "a list of strings");
  std::vector<std::string> result;
  for (const Json& item : *value) {
    if (!item.is_string()) wrong_type(key, "a list of strings");
    result.push_back(item.get<std::string>());
  }
  return result;
}

const Json* JsonFields::object(std::string_view key) const {
  const Json* value = present(*this, key);
  if (value && !value->is_object()) wrong_type(key, "an object");
  return value;
}

}  // namespace larder
