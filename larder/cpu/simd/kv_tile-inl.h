// Loads the keys and values of one block into the working form of attention: f32 tiles, K
// transposed so that lanes are keys. The only vector code that knows stored formats.
//
// T is the instruction set: T::V its vector (vec_*.h), T::transpose, T::low_bf16, T::high_bf16, and
// what kv_codes-inl.h needs.
#pragma once

#include <cstdint>

#include "larder/cpu/attend_tile.h"
#include "larder/cpu/simd/kv_codes-inl.h"

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

template <class T>
inline typename T::V load_as(const KVLanes& lanes, int64_t lane, int64_t d, int64_t n,
                             int64_t head_dim) {
  using V = typename T::V;
  const void* p = lanes.at[lane];
  switch (lanes.format[lane]) {
    case KVFormat::kF16:
      return StoredF16<V>::some(p, d, n);
    case KVFormat::kBF16:
      return StoredBF16<V>::some(p, d, n);
    case KVFormat::kCodes: {
      V channels;
      with_coding(lanes, [&](auto coding) {
        const int64_t group = d / lanes.codes->channel_group * kTileKeys;
        channels = coded_channels<T, decltype(coding)>(lanes, lane, d, group, head_dim);
      });
      return channels;
    }
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

inline int64_t row_bytes(const KVLanes& lanes, int64_t lane, int64_t head_dim) {
  switch (lanes.format[lane]) {
    case KVFormat::kF32:
      return head_dim * 4;
    case KVFormat::kCodes:
      return head_dim * lanes.codes->bits / 8;
    case KVFormat::kPacked:
      return head_dim / 2;  // about: of 1 to 8 bits each
    default:
      return head_dim * 2;
  }
}

// Asks for a stored token ahead of its use: the rows of a block are many short streams, which the
// processor's own prefetchers follow badly (docs/performance.md). Inlined by force: GCC 12 takes a
// function that only prefetches for one without effect and drops calls of it.
[[gnu::always_inline]] inline void prefetch_row(const KVLanes& lanes, int64_t lane,
                                                int64_t head_dim) {
  const int64_t bytes = row_bytes(lanes, lane, head_dim);
  for (int64_t at = 0; at < bytes; at += 64)
    __builtin_prefetch(static_cast<const char*>(lanes.at[lane]) + at, 0, 2);
}

// Whether V::kLanes keys may be loaded together: they lie alike, and of codes have the parameters
// side by side.
template <class V>
inline bool lie_alike(const KVLanes& lanes, int64_t lane) {
  if (!all_equal(lanes.format + lane, V::kLanes)) return false;
  return lanes.format[lane] != KVFormat::kCodes || !lanes.codes->by_channel ||
         all_equal(lanes.group + lane, V::kLanes);
}

template <class T>
void load_k(const KVBlock& block, const KVBlock& next, int32_t head_dim, float* k_tile) {
  using V = typename T::V;
  constexpr int64_t kLanes = V::kLanes;
  for (int64_t lane = 0; lane < kTileKeys; lane += kLanes, k_tile += kLanes) {
    const void* const* keys = block.k.at + lane;
    const KVFormat format = block.k.format[lane];
    for (int64_t i = lane; next.present != 0 && i < lane + kLanes; ++i)
      prefetch_row(next.k, i, head_dim);
    if (block.k.folded) {
      load_key_words<T>(block.k, lane, head_dim, k_tile);
    } else if (!lie_alike<V>(block.k, lane)) {
      transpose_keys<T>([&](int64_t i, int64_t d,
                            int64_t n) { return load_as<T>(block.k, lane + i, d, n, head_dim); },
                        0, head_dim, k_tile);
    } else if (format == KVFormat::kCodes) {
      with_widening(*block.k.codes, [&](auto coding) {
        load_coded_keys<T, decltype(coding)>(block.k, lane, head_dim, k_tile);
      });
    } else if (format == KVFormat::kBF16) {
      const int64_t left = transpose_bf16_pairs<T>(keys, head_dim, k_tile);
      load_keys<T, StoredBF16>(keys, left, head_dim, k_tile);
    } else if (format == KVFormat::kF16) {
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
    if (next.present != 0) prefetch_row(next.v, lane, head_dim);
    if ((block.present >> lane & 1) == 0) continue;
    const void* values = block.v.at[lane];
    switch (block.v.format[lane]) {
      case KVFormat::kF16:
        load_values<V, StoredF16>(values, head_dim, padded_dim, v_tile);
        break;
      case KVFormat::kBF16:
        load_values<V, StoredBF16>(values, head_dim, padded_dim, v_tile);
        break;
      case KVFormat::kCodes:
        load_coded_row<T>(block.v, lane, head_dim, v_tile);
        break;
      default:
        load_values<V, StoredF32>(values, head_dim, padded_dim, v_tile);
    }
  }
}

}  // namespace
}  // namespace larder::cpu
