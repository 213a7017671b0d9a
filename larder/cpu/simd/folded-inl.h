// Codes that go into products as they are, (code - zero) * scale or scale * code - zero being
// multiplied out: the scales of K into q where one serves all keys of a channel, those of V into
// the weights where one serves all channels of a key (may_fold of kv_tile.cc). It saves most of the
// work of widening codes.
//
// T::operand(v) is v as the products take it: rounded to bf16 where they are of bf16.
#pragma once

#include <cstdint>

#include "larder/cpu/attend_tile.h"

namespace larder::cpu {
namespace {

// Of bytes.
template <class Byte>
inline bool all_equal(const Byte* values, int64_t count) {
  static_assert(sizeof(Byte) == 1);
  return __builtin_memcmp(values, values + 1, static_cast<size_t>(count) - 1) == 0;
}

inline bool folds(const KVLanes& lanes) {
  return lanes.codes->may_fold && lanes.format[0] == KVFormat::kCodes &&
         all_equal(lanes.format, kTileKeys) && all_equal(lanes.group, kTileKeys);
}

// The lanes of vector `i` among 64 bits.
template <class T>
inline uint64_t lanes_of(uint64_t bits, int64_t i) {
  constexpr int64_t kLanes = T::V::kLanes;
  return bits >> (i * kLanes) & ((uint64_t{1} << kLanes) - 1);
}

// Vectors of lanes.
struct VectorRange {
  int64_t begin, end;
};

// weight * scale in place of the weights of one row; gives the sum over keys of the zeros times
// that, or times the weights where the scale does not reach them, which comes off all channels.
// Hidden keys meet neither.
template <class T>
float fold_scales(const KVLanes& v, const VectorRange& range, uint64_t visible, float* weights) {
  using V = typename T::V;
  V off = V::zero();
  for (int64_t i = range.begin; i < range.end; ++i) {
    const auto seen = T::mask(lanes_of<T>(visible, i));
    const int64_t at = i * V::kLanes;
    const V weight = V::load(weights + at);
    const V scaled = V::select(seen, T::operand(mul(weight, V::load(v.scale + at))), V::zero());
    scaled.store(weights + at);
    const V zero = V::select(seen, V::load(v.zero + at), V::zero());
    off = fma(v.codes->zero_first ? scaled : weight, zero, off);
  }
  return reduce_add(off);
}

}  // namespace
}  // namespace larder::cpu
