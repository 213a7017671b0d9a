// Joins strings and numbers. Numbers are written with std::to_chars, so the process locale never
// shows (cases 37).
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace larder {

inline void append_part(std::string& out, std::string_view part) { out.append(part); }
inline void append_part(std::string& out, const char* part) { out.append(part); }
inline void append_part(std::string& out, char part) { out.push_back(part); }
inline void append_part(std::string& out, bool part) { out.append(part ? "true" : "false"); }

template <class Number>
requires(std::integral<Number> || std::floating_point<Number>) void append_part(std::string& out,
                                                                                Number part) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, part).ptr;
  out.append(digits, end);
}

// str("head_dim ", 80, " is odd") == "head_dim 80 is odd". Floats are the shortest text that reads
// back the same.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::string out;
  (append_part(out, parts), ...);
  return out;
}

// join({"a", "b"}, ", ") == "a, b"
template <class Range>
std::string join(const Range& parts, std::string_view between) {
  std::string out;
  bool first = true;
  for (const auto& part : parts) {
    if (!first) out.append(between);
    first = false;
    append_part(out, part);
  }
  return out;
}

// 16 digits.
std::string hex(uint64_t value);
// "1234567" bytes as "1.23 MB" (decimal units), for people.
std::string human_bytes(double bytes);
// A fixed number of decimals, with a point in every locale.
std::string fixed(double value, int decimals);
// The text cut to `limit` bytes and with control bytes shown as '?', fit for one line of an error.
std::string in_quotes(std::string_view text, size_t limit = 80);

}  // namespace larder
