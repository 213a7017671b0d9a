// The byte-level alphabet of GPT-2: one printable character for each of the 256 bytes, so that a
// vocabulary of strings can hold any bytes. Printable Latin-1 stands for itself; the other 68 bytes
// take U+0100 onwards in order (a space is U+0120, "Ġ").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace larder {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteAlphabet {
  std::array<char32_t, 256> char_of{};
  std::array<int16_t, 324> byte_of{};  // by character; -1 outside the alphabet

  constexpr ByteAlphabet() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
      char_of[static_cast<size_t>(byte)] = c;
      byte_of[c] = static_cast<int16_t>(byte);
    }
  }
};
inline constexpr ByteAlphabet kByteAlphabet;

// Every byte of `text` as its character.
std::string to_byte_chars(std::string_view text);
// The bytes that a token stands for: the token itself if one of its characters is not in the
// alphabet (an added token may hold anything).
std::string from_byte_chars(std::string_view token);

}  // namespace larder
