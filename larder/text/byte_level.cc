#include "larder/text/byte_level.h"

#include "larder/text/utf8.h"

namespace larder {

std::string to_byte_chars(std::string_view text) {
  std::string out;
  out.reserve(text.size() * 2);
  for (const char byte : text)
    append_char(out, kByteAlphabet.char_of[static_cast<unsigned char>(byte)]);
  return out;
}

std::string from_byte_chars(std::string_view token) {
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const CharScan scan = char_at(token, at);
    const bool known = scan.kind == CharScan::kWhole && scan.code < kByteAlphabet.byte_of.size() &&
                       kByteAlphabet.byte_of[scan.code] >= 0;
    if (!known) return std::string(token);
    out.push_back(static_cast<char>(kByteAlphabet.byte_of[scan.code]));
    at += scan.length;
  }
  return out;
}

}  // namespace larder
