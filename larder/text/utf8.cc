#include "larder/text/utf8.h"

namespace larder {
namespace {

struct Lead {
  size_t length;             // of the whole character; 0 for a byte that begins none
  unsigned char low, high;   // what the second byte may be
  unsigned char first_bits;  // of the code point
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0, byte};
  if (byte < 0xC2) return {0, 0, 0, 0};  // continuation bytes, and C0, C1: overlong
  if (byte < 0xE0) return {2, 0x80, 0xBF, static_cast<unsigned char>(byte & 0x1F)};
  const auto bits = static_cast<unsigned char>(byte & 0x0F);
  if (byte == 0xE0) return {3, 0xA0, 0xBF, bits};  // below A0: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F, bits};  // above 9F: surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF, bits};
  if (byte == 0xF0) return {4, 0x90, 0xBF, 0};
  if (byte < 0xF4) return {4, 0x80, 0xBF, static_cast<unsigned char>(byte & 0x07)};
  if (byte == 0xF4) return {4, 0x80, 0x8F, 4};  // above 8F: past U+10FFFF
  return {0, 0, 0, 0};
}

}  // namespace

CharScan scan_char(std::string_view text) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return {CharScan::kBroken, 1, 0};
  char32_t code = lead.first_bits;
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {CharScan::kShort, i, 0};
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {CharScan::kBroken, i, 0};
    code = (code << 6) | (byte & 0x3Fu);
  }
  return {CharScan::kWhole, lead.length, code};
}

void append_char(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

size_t first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CharScan scan = char_at(text, at);
    if (scan.kind != CharScan::kWhole) return at;
    at += scan.length;
  }
  return std::string_view::npos;
}

bool is_white_space(char32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace larder
