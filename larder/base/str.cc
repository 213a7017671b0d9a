#include <array>
#include <cstdio>
#include <cstdlib>

#include "larder/base/error.h"

namespace larder {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "larder: %s:%d: assertion failed: %s\n", file, line, condition);
  std::abort();
}

std::string fixed(double value, int decimals) {
  char digits[400];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, decimals).ptr;
  return {digits, end};
}

std::string hex(uint64_t value) {
  std::string digits(16, '0');
  for (size_t i = digits.size(); i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

std::string human_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {" B", " kB", " MB", " GB", " TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return str(fixed(bytes, unit == 0 ? 0 : bytes < 10 ? 2 : 1), kUnits[unit]);
}

std::string in_quotes(std::string_view text, size_t limit) {
  size_t end = text.size();
  if (end > limit) {
    end = limit;  // then back to where a character begins
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  std::string out = "\"";
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back(byte < 0x20 || byte == 0x7f ? '?' : c);
  }
  out.append(end < text.size() ? "...\"" : "\"");
  return out;
}

}  // namespace larder
