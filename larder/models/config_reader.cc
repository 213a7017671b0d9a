#include "larder/models/config_reader.h"

#include <cmath>

#include "larder/base/json.h"

namespace larder {

void ConfigProblems::add_error(const Error& error) {
  std::string_view text = error.what();
  const std::string prefix = what_ + ": ";
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  lines_.emplace_back(text);
}

void ConfigProblems::throw_if_any() const {
  if (!lines_.empty()) fail(what_, ": ", join(lines_, "; "));
}

template <class Value>
std::optional<Value> ConfigReader::take(std::string_view key, Getter<Value> get) const {
  try {
    return (fields_.*get)(key);
  } catch (const Error& error) {
    problems_.add_error(error);
    return std::nullopt;
  }
}

template <class Value>
std::optional<Value> ConfigReader::need(std::string_view key, std::optional<Value> absent,
                                        Getter<Value> get) const {
  if (!fields_.has(key)) {
    if (!absent) problem(key, " is missing");
    return absent;
  }
  if (fields_.is_null(key)) {
    problem(key, " is null, which means nothing here");
    return std::nullopt;
  }
  return take(key, get);
}

int64_t ConfigReader::size(std::string_view key, std::optional<int64_t> absent,
                           int64_t limit) const {
  const auto value = need(key, absent, &JsonFields::integer);
  if (!value) return 0;
  if (*value >= 1 && *value <= limit) return *value;
  problem(key, " must be between 1 and ", limit, ", found ", *value);
  return 0;
}

int64_t ConfigReader::size_or_null(std::string_view key, std::optional<int64_t> absent,
                                   int64_t null_means, int64_t limit) const {
  if (fields_.is_null(key) || (!fields_.has(key) && !absent)) return null_means;
  return size(key, absent, limit);
}

double ConfigReader::number(std::string_view key, std::optional<double> absent,
                            double above) const {
  const auto value = need(key, absent, &JsonFields::number);
  if (!value) return 0;
  if (std::isfinite(*value) && *value > above) return *value;
  problem(key, " must be a finite number above ", above, ", found ", *value);
  return 0;
}

double ConfigReader::number_or_null(std::string_view key, double absent) const {
  return fields_.is_null(key) ? 0 : number(key, absent);
}

bool ConfigReader::flag(std::string_view key, bool absent) const {
  if (!fields_.has(key)) return absent;
  return take(key, &JsonFields::boolean).value_or(false);
}

std::optional<std::string> ConfigReader::text(std::string_view key) const {
  return take(key, &JsonFields::string);
}

std::optional<std::vector<std::string>> ConfigReader::texts(std::string_view key) const {
  return take(key, &JsonFields::strings);
}

std::optional<int64_t> ConfigReader::id(std::string_view key, std::optional<int64_t> absent) const {
  const auto value = fields_.has(key) ? take(key, &JsonFields::integer) : absent;
  if (!value || *value == -1) return std::nullopt;
  if (*value < 0 || *value > kMaxSize) problem(key, " is no token id: ", *value);
  return value;
}

std::vector<int64_t> ConfigReader::ids(std::string_view key, std::optional<int64_t> absent) const {
  std::vector<int64_t> result;
  if (!fields_.has(key) && absent) result.push_back(*absent);
  for (const int64_t id : take(key, &JsonFields::integers).value_or(std::vector<int64_t>{})) {
    if (id == -1) continue;
    if (id < 0 || id > kMaxSize) problem(key, " is no token id: ", id);
    result.push_back(id);
  }
  return result;
}

}  // namespace larder
