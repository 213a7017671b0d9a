#include "larder/tensor/packed_codes.h"

#include <gtest/gtest.h>

#include <vector>

namespace larder {
namespace {

TEST(Case09, PackedCodesComeBackForEveryCountAndWidth) {
  for (const int32_t bits : {1, 2, 3, 4, 8}) {
    for (int64_t n = 0; n <= 33; ++n) {
      std::vector<uint8_t> codes(static_cast<size_t>(n));
      for (size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<uint8_t>(i * 7 % (size_t{1} << bits));
      // Exactly as long as it must be: a sanitizer sees a byte past the end. Full of ones before.
      std::vector<std::byte> packed(static_cast<size_t>(packed_bytes(n, bits)), std::byte{0xFF});
      pack_codes(codes.data(), n, bits, packed.data());
      std::vector<uint8_t> back(codes.size(), 0xFF);
      unpack_codes(packed.data(), n, bits, back.data());
      EXPECT_EQ(back, codes) << bits << " bits, " << n << " codes";
      for (int64_t i = 0; i < n; ++i)
        EXPECT_EQ(code_at(packed.data(), i, bits), codes[static_cast<size_t>(i)]);
      const int64_t tail = packed_bytes(n, bits) * 8 - n * bits;
      EXPECT_EQ(n == 0 ? 0 : static_cast<int>(packed.back()) >> (8 - tail), 0);
    }
  }
}

TEST(Case09, CodesAreALittleEndianStringOfBits) {
  const std::vector<uint8_t> codes{5, 3, 7};  // 3 bits each: 101 011 111, lowest bit first
  std::vector<std::byte> packed(2);
  pack_codes(codes.data(), 3, 3, packed.data());
  EXPECT_EQ(packed, (std::vector<std::byte>{std::byte{0b11'011'101}, std::byte{0b1}}));
}

}  // namespace
}  // namespace larder
