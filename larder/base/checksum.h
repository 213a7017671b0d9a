// A fast checksum against damage, not against forgery: any change within one 8-byte word changes
// the result for certain, any other with a chance of all but 2^-64.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace larder {

// Four lanes of words, each folded by xor, an odd product and a rotation, which lose nothing; then
// the lanes, the last bytes and the length alike. The same on every machine of little-endian order.
inline uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed = 0) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  const auto fold = [](uint64_t state, uint64_t word) {
    return std::rotl((state ^ word) * kMultiplier, 29);
  };
  const auto word_at = [](const std::byte* p, size_t count) {
    uint64_t word = 0;
    std::memcpy(&word, p, count);
    return word;
  };
  uint64_t lane[4] = {seed, seed + 1, seed + 2, seed + 3};
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 32; left -= 32, at += 32) {
    for (size_t i = 0; i < 4; ++i) lane[i] = fold(lane[i], word_at(at + 8 * i, 8));
  }
  uint64_t state = fold(seed, bytes.size());
  for (const uint64_t one : lane) state = fold(state, one);
  for (; left >= 8; left -= 8, at += 8) state = fold(state, word_at(at, 8));
  if (left > 0) state = fold(state, word_at(at, left));
  state = (state ^ (state >> 32)) * kMultiplier;
  return state ^ (state >> 29);
}

}  // namespace larder
