// Numbers from the command line, read alike in every locale.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "larder/base/error.h"

namespace larder::tools {

// The whole of `text` as a number; throws Error naming the flag and the text.
template <class Number>
Number parse_number(const std::string& flag, const std::string& text) {
  Number value{};
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto result = std::from_chars(begin, end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end) {
    fail(flag, " ", in_quotes(text), " is not ",
         std::is_floating_point_v<Number> ? "a number" : "a whole number in range");
  }
  return value;
}

// "1,2,3"; empty text gives an empty list.
template <class Number>
std::vector<Number> parse_list(const std::string& flag, const std::string& text) {
  std::vector<Number> values;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    values.push_back(parse_number<Number>(flag, text.substr(begin, comma - begin)));
    if (comma + 1 == text.size()) fail(flag, " ", in_quotes(text), " ends in a comma");
    begin = comma + 1;
  }
  return values;
}

// Bytes with an optional suffix: 1000000, 64K, 512M, 2G (powers of 1024).
size_t parse_bytes(const std::string& flag, const std::string& text);

// `value` is a number or an optional one.
template <class Number>
struct NumberOf {
  using Type = Number;
};
template <class Number>
struct NumberOf<std::optional<Number>> {
  using Type = Number;
};
template <class Value>
CLI::Option* add_number(CLI::App& app, const std::string& flag, Value& value,
                        const std::string& help) {
  using Number = typename NumberOf<Value>::Type;
  return app
      .add_option_function<std::string>(
          flag,
          [flag, &value](const std::string& text) { value = parse_number<Number>(flag, text); },
          help)
      ->type_name(std::is_floating_point_v<Number> ? "X" : "N");
}

template <class Number>
CLI::Option* add_list(CLI::App& app, const std::string& flag, std::vector<Number>& values,
                      const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [flag, &values](const std::string& text) { values = parse_list<Number>(flag, text); },
          help)
      ->type_name("N,N,...");
}

}  // namespace larder::tools
