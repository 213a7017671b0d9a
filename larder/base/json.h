// Reading JSON that comes from outside: a depth limit, no duplicate keys where asked, typed access
// that names the field. The parser is nlohmann-json (Debian: nlohmann-json3-dev), wrapped so that
// its exceptions never reach a user.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "larder/base/json_fwd.h"

namespace larder {

enum class DuplicateKeys { kLastWins, kRefuse };

// Parses `text`. `what` begins every error ("model/config.json"). Refuses invalid UTF-8, nesting
// deeper than 64, trailing bytes, and, when asked, an object with the same key twice.
Json parse_json(std::string_view text, const std::string& what,
                DuplicateKeys duplicates = DuplicateKeys::kLastWins);

// Typed access to the fields of one object, for error lines that name the file, the field, and what
// was found. Absent and null are different things (cases 36): `has` is true for a null, the get_*
// refuse a null, and the optional forms give nullopt for absent AND null, so a caller who must tell
// them apart asks is_null first.
class JsonFields {
 public:
  // `object` must outlive this. `what` is the file; throws if the value is not an object.
  JsonFields(const Json& object, std::string what);

  bool has(std::string_view key) const;      // present, null included
  bool is_null(std::string_view key) const;  // present and null
  // Whole numbers may be written 10000, 10000.0 or 1e4.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  // An id or a list of ids (eos_token_id).
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<std::string>> strings(std::string_view key) const;
  // The sub-object, or nullptr for absent and null. Throws for another type.
  const Json* object(std::string_view key) const;
  const Json* find(std::string_view key) const;  // nullptr when absent
  [[noreturn]] void wrong_type(std::string_view key, std::string_view expected) const;
  const std::string& what() const { return what_; }

 private:
  const Json& object_;
  std::string what_;
};

// A JSON value in short, for an error line: numbers and strings as written, containers by name.
std::string describe(const Json& value);

}  // namespace larder
