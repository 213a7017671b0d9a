// UTF-8, one character at a time: what is whole, what is broken, what has only begun.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace larder {

inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";  // U+FFFD

// The character, or the broken bytes, at the start of a text.
struct CharScan {
  enum Kind {
    kWhole,   // `length` bytes are the character `code`
    kBroken,  // `length` bytes can never be part of a character
    kShort,   // the text ends, and its `length` bytes begin a character
  };
  Kind kind;
  size_t length;  // 1..4
  char32_t code;  // kWhole only
};

// Needs: `text` is not empty. A broken sequence is cut as Unicode recommends (3.9, "maximal
// subpart"), which is what WHATWG decoders, Rust and Python do: F0 9F 41 is one broken sequence of
// two bytes, then "A"; C0 80 (overlong) and ED A0 80 (surrogate) are broken byte by byte.
CharScan scan_char(std::string_view text);

// The character at `at` of a valid text.
inline CharScan char_at(std::string_view text, size_t at) { return scan_char(text.substr(at)); }

void append_char(std::string& out, char32_t code);

// Gives the offset of the first byte that is not part of a whole character, or npos.
size_t first_invalid_utf8(std::string_view text);

// The property White_Space of Unicode.
bool is_white_space(char32_t code);

}  // namespace larder
