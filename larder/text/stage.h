// How the stages of a tokenizer.json are read: each is an object with a "type", and each family of
// stages has a table of the types that are built. What is not in the table is refused by name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/base/error.h"
#include "larder/base/json.h"

namespace larder {

// One row of a family's table. `Make` is a function pointer that takes (const JsonFields&).
template <class Make>
struct StageType {
  std::string_view name;
  Make make;
};

// A field that has to be there.
template <class T>
T required(std::optional<T> value, const JsonFields& fields, std::string_view key) {
  if (!value) fail(fields.what(), ": the field ", in_quotes(key), " is missing");
  return *std::move(value);
}

inline std::string required_string(const JsonFields& fields, std::string_view key) {
  return required(fields.string(key), fields, key);
}

inline bool flag(const JsonFields& fields, std::string_view key, bool otherwise) {
  return fields.boolean(key).value_or(otherwise);
}

// The list at `key`, which has to be there.
inline const Json& required_list(const JsonFields& fields, std::string_view key) {
  const Json* list = fields.find(key);
  if (!list) fail(fields.what(), ": the field ", in_quotes(key), " is missing");
  if (!list->is_array()) fields.wrong_type(key, "a list");
  return *list;
}

// A whole number from 0 to 2^31 - 1.
inline int32_t checked_id(int64_t id, std::string_view token, const std::string& what) {
  if (id < 0 || id > INT32_MAX)
    fail(what, ": the token ", in_quotes(token), " has the id ", id,
         "; ids are from 0 to 2147483647");
  return static_cast<int32_t>(id);
}

// Gives the row of `types` that the stage's "type" names. `family` is the word for error lines.
template <class Make>
Make find_stage(const JsonFields& fields, std::string_view family,
                std::span<const StageType<Make>> types) {
  const std::string name = required_string(fields, "type");
  std::vector<std::string_view> supported;
  for (const auto& type : types) {
    if (type.name == name) return type.make;
    supported.push_back(type.name);
  }
  fail_as(ErrorKind::kUnsupported, fields.what(), ": the ", family, " ", in_quotes(name),
          " is not supported (supported: ", join(supported, ", "), ")");
}

}  // namespace larder
