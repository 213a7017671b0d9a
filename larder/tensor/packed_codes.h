// Codes of 1 to 8 bits as a string of bits: code i is bits [i * bits, (i + 1) * bits), the lowest
// bit of a byte first; the last byte is filled with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace larder {

constexpr int64_t packed_bytes(int64_t count, int32_t bits) { return (count * bits + 7) / 8; }

// Both touch packed_bytes(count, bits) bytes of `packed`, and no other.
void pack_codes(const uint8_t* codes, int64_t count, int32_t bits, std::byte* packed);
void unpack_codes(const std::byte* packed, int64_t count, int32_t bits, uint8_t* codes);

// Reads no byte behind the code.
inline uint8_t code_at(const std::byte* packed, int64_t i, int32_t bits) {
  const int64_t bit = i * bits;
  auto wide = static_cast<uint32_t>(packed[bit / 8]);
  if (bit % 8 + bits > 8) wide |= static_cast<uint32_t>(packed[bit / 8 + 1]) << 8;
  return static_cast<uint8_t>(wide >> (bit % 8) & ((1u << bits) - 1));
}

}  // namespace larder
