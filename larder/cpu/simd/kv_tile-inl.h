// Loads the keys and values of one block into the working form of attention: f32 tiles, K
// transposed so that lanes are keys. The only vector code that knows stored formats.
//
// T is the instruction set: T::V its vector (vec_*.h), T::transpose, T::low_bf16, T::high_bf16.
#pragma once

#include <cstdint>

#include "larder/cpu/attend_tile.h"

namespace larder::cpu {
namespace {

// One loader a format: elements [d, d + n) of a stored token, n up to the lanes of V; the rest 0.
template <class V>
struct StoredF32 {
  static constexpr int64_t kSize = 4;
  static V some(const void* p, int64_t d, int64_t n) {
    const float* at = static_cast<const float*>(p) + d;
    return n >= V::kLanes ? V::load(at) : V::load_first(at, n);
  }
};
template <class V>
struct StoredF16 {
  static constexpr int64_t kSize = 2;
  static V some(const void* p, int64_t d, int64_t n) {
    const uint16_t* at = static_cast<const uint16_t*>(p) + d;
    return n >= V::kLanes ? V::load_f16(at) : V::load_f16_first(at, n);
  }
};
template <class V>
struct StoredBF16 {
  static constexpr int64_t kSize = 2;
  static V some(const void* p, int64_t d, int64_t n) {
    const uint16_t* at = static_cast<const uint16_t*>(p) + d;
    return n >= V::kLanes ? V::load_bf16(at) : V::load_bf16_first(at, n);
  }
};

template <class V>
inline V load_as(KVFormat format, const void* p, int64_t d, int64_t n) {
  switch (format) {
    case KVFormat::kF16:
      return StoredF16<V>::some(p, d, n);
    case KVFormat::kBF16:
      return StoredBF16<V>::some(p, d, n);
    default:
      return StoredF32<V>::some(p, d, n);
  }
}

// Channels [d, head_dim) of V::kLanes keys, of one format or (load(lane, d, n)) of several.
template <class T, class Load>
inline void transpose_keys(const Load& load, int64_t d, int64_t head_dim, float* k_tile) {
  using V = typename T::V;
  constexpr int64_t kLanes = V::kLanes;
  for (; d < head_dim; d += kLanes) {
    const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
    V rows[kLanes];
#pragma GCC unroll 16
    for (int64_t lane = 0; lane < kLanes; ++lane) rows[lane] = load(lane, d, n);
    T::transpose(rows);
    for (int64_t i = 0; i < n; ++i) rows[i].store(k_tile + (d + i) * kTileKeys);
  }
}

// Two bf16 channels are turned as one word and parted afterwards: half the shuffles. Gives the
// first channel that is left.
template <class T>
inline int64_t transpose_bf16_pairs(const void* const* keys, int64_t head_dim, float* k_tile) {
  using V = typename T::V;
  constexpr int64_t kLanes = V::kLanes;
  int64_t d = 0;
  for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
    V rows[kLanes];
#pragma GCC unroll 16
    for (int64_t lane = 0; lane < kLanes; ++lane)
      rows[lane] = V::load(static_cast<const uint16_t*>(keys[lane]) + d);
    T::transpose(rows);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) {
      T::low_bf16(rows[i]).store(k_tile + (d + 2 * i) * kTileKeys);
      T::high_bf16(rows[i]).store(k_tile + (d + 2 * i + 1) * kTileKeys);
    }
  }
  return d;
}

template <class T, template <class> class Format>
inline void load_keys(const void* const* keys, int64_t d, int64_t head_dim, float* k_tile) {
  using V = typename T::V;
  transpose_keys<T>(
      [keys](int64_t lane, int64_t at, int64_t n) { return Format<V>::some(keys[lane], at, n); }, d,
      head_dim, k_tile);
}

inline bool all_equal(const KVFormat* formats, int64_t count) {
  bool equal = true;
  for (int64_t i = 1; i < count; ++i) equal = equal && formats[i] == formats[0];
  return equal;
}

// Asks for a stored token ahead of its use: the rows of a block are many short streams, which the
// processor's own prefetchers follow badly (docs/performance.md).
inline void prefetch_row(const void* row, KVFormat format, int64_t head_dim) {
  const int64_t bytes = head_dim * (format == KVFormat::kF32      ? 4
                                    : format == KVFormat::kPacked ? 1
                                                                  : 2);
  for (int64_t at = 0; at < bytes; at += 64)
    __builtin_prefetch(static_cast<const char*>(row) + at, 0, 2);
}

template <class T>
void load_k(const KVBlock& block, const KVBlock& next, int32_t head_dim, float* k_tile) {
  using V = typename T::V;
  constexpr int64_t kLanes = V::kLanes;
  for (int64_t lane = 0; lane < kTileKeys; lane += kLanes, k_tile += kLanes) {
    const void* const* keys = block.k.at + lane;
    const KVFormat* formats = block.k.format + lane;
    for (int64_t i = lane; next.present != 0 && i < lane + kLanes; ++i)
      prefetch_row(next.k.at[i], next.k.format[i], head_dim);
    if (!all_equal(formats, kLanes)) {
      transpose_keys<T>(
          [&](int64_t i, int64_t d, int64_t n) { return load_as<V>(formats[i], keys[i], d, n); }, 0,
          head_dim, k_tile);
    } else if (formats[0] == KVFormat::kBF16) {
      const int64_t left = transpose_bf16_pairs<T>(keys, head_dim, k_tile);
      load_keys<T, StoredBF16>(keys, left, head_dim, k_tile);
    } else if (formats[0] == KVFormat::kF16) {
      load_keys<T, StoredF16>(keys, 0, head_dim, k_tile);
    } else {
      load_keys<T, StoredF32>(keys, 0, head_dim, k_tile);
    }
  }
}

// A row of the V tile; its padding is zero.
template <class V, template <class> class Format>
inline void load_values(const void* values, int64_t head_dim, int64_t padded_dim, float* row) {
  int64_t d = 0;
  for (; d + V::kLanes <= head_dim; d += V::kLanes)
    Format<V>::some(values, d, V::kLanes).store(row + d);
  for (; d < padded_dim; d += V::kLanes)
    Format<V>::some(values, d, head_dim > d ? head_dim - d : 0).store(row + d);
}

template <class T>
void load_v(const KVBlock& block, const KVBlock& next, int32_t head_dim, int32_t padded_dim,
            float* v_tile) {
  using V = typename T::V;
  for (int64_t lane = 0; lane < kTileKeys; ++lane, v_tile += padded_dim) {
    if (next.present != 0) prefetch_row(next.v.at[lane], next.v.format[lane], head_dim);
    if ((block.present >> lane & 1) == 0) continue;
    const void* values = block.v.at[lane];
    switch (block.v.format[lane]) {
      case KVFormat::kF16:
        load_values<V, StoredF16>(values, head_dim, padded_dim, v_tile);
        break;
      case KVFormat::kBF16:
        load_values<V, StoredBF16>(values, head_dim, padded_dim, v_tile);
        break;
      default:
        load_values<V, StoredF32>(values, head_dim, padded_dim, v_tile);
    }
  }
}

}  // namespace
}  // namespace larder::cpu
