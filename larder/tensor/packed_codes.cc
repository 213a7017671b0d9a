#include "larder/tensor/packed_codes.h"

namespace larder {

void pack_codes(const uint8_t* codes, int64_t count, int32_t bits, std::byte* packed) {
  uint32_t pending = 0;
  int32_t held = 0;
  for (int64_t i = 0; i < count; ++i) {
    pending |= static_cast<uint32_t>(codes[i]) << held;
    held += bits;
    for (; held >= 8; held -= 8, pending >>= 8) *packed++ = static_cast<std::byte>(pending & 0xFF);
  }
  if (held > 0) *packed = static_cast<std::byte>(pending & 0xFF);
}

void unpack_codes(const std::byte* packed, int64_t count, int32_t bits, uint8_t* codes) {
  const uint32_t mask = (1u << bits) - 1;
  uint32_t pending = 0;
  int32_t held = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (held < bits) {
      pending |= static_cast<uint32_t>(*packed++) << held;
      held += 8;
    }
    codes[i] = static_cast<uint8_t>(pending & mask);
    pending >>= bits;
    held -= bits;
  }
}

}  // namespace larder
