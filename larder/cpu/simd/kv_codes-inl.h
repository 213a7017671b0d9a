// Keys and values that lie in codes: their parameters widened to f32 once a block, then codes
// widened in registers. What a code stands for has the same bits whichever way it is read: each
// operation is rounded, as in kv_dequantize() of tensor/kv_dequant.h.
//
// T is the instruction set: T::V its vector (vec_*.h), T::transpose, T::field<shift, bits>(words)
// (one field of each 32-bit word, as f32), T::codes<bits>(p, d) (codes d.. of a run, as f32).
#pragma once

#include <cstdint>

#include "larder/cpu/attend_tile.h"
#include "larder/cpu/simd/convert-inl.h"
#include "larder/cpu/simd/folded-inl.h"

namespace larder::cpu {
namespace {

// ---- parameters ----

// `count` numbers `stride` bytes apart, at most kTileKeys, widened to f32.
template <class V>
inline void widen_strided(DType dtype, const char* from, int64_t stride, int64_t count, float* to) {
  const int64_t size = dtype == DType::kF32 ? 4 : 2;
  if (stride == size || count == 1) return void(load_row<V>(to, from, dtype, count));
  char gathered[4 * kTileKeys];
  if (size == 4) {
    for (int64_t i = 0; i < count; ++i) __builtin_memcpy(gathered + 4 * i, from + i * stride, 4);
  } else {
    for (int64_t i = 0; i < count; ++i) __builtin_memcpy(gathered + 2 * i, from + i * stride, 2);
  }
  load_row<V>(to, gathered, dtype, count);
}

template <class V>
inline void fill_floats(float value, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) V::set1(value).store(to + i);
  if (i < count) V::set1(value).store_first(to + i, count - i);
}

inline float middle_code(const KVCodes& codes) { return static_cast<float>(1 << (codes.bits - 1)); }

template <class V>
void widen_by_token(const KVRun& run, const KVRunParameters& from, const KVLanes& lanes) {
  const KVCodes& codes = *lanes.codes;
  const int64_t size = codes.dtype == DType::kF32 ? 4 : 2;
  for (int64_t g = 0; g < codes.parameters; ++g) {
    const int64_t to = g * kTileKeys + run.lane;
    widen_strided<V>(codes.dtype, from.scale + g * size, codes.token_stride, run.count,
                     lanes.scale + to);
    if (codes.symmetric) {
      fill_floats<V>(middle_code(codes), run.count, lanes.zero + to);
    } else {
      widen_strided<V>(codes.dtype, from.zero + g * size, codes.token_stride, run.count,
                       lanes.zero + to);
    }
  }
}

// Gives the number of the next group.
template <class V>
int64_t widen_by_channel(const KVRun& run, const KVRunParameters& from, int64_t group,
                         int64_t head_dim, KVLanes& lanes) {
  const KVCodes& codes = *lanes.codes;
  const char *scale = from.scale, *zero = from.zero;
  for (int64_t t = -from.within; t < run.count; t += codes.token_group, ++group) {
    load_row<V>(lanes.scale + group * head_dim, scale, codes.dtype, head_dim);
    if (codes.symmetric) {
      fill_floats<V>(middle_code(codes), head_dim, lanes.zero + group * head_dim);
    } else {
      load_row<V>(lanes.zero + group * head_dim, zero, codes.dtype, head_dim);
      zero += codes.token_stride;
    }
    scale += codes.token_stride;
    // To the end of the block: lanes that hold no key go with those before them.
    for (int64_t lane = run.lane + (t > 0 ? t : 0); lane < kTileKeys; ++lane)
      lanes.group[lane] = static_cast<uint8_t>(group);
  }
  return group;
}

// The parameters of a block are a few runs of bytes, most often one.
[[gnu::always_inline]] inline void fetch_parameters(const KVBlock& block, const KVLanes& lanes,
                                                    int64_t head_dim) {
  const KVCodes& codes = *lanes.codes;
  const int64_t token_bytes =
      (codes.by_channel ? head_dim : codes.parameters) * (codes.dtype == DType::kF32 ? 4 : 2);
  for (int64_t i = 0; i < block.num_runs; ++i) {
    const KVRun& run = block.run[i];
    if (lanes.format[run.lane] != KVFormat::kCodes) continue;
    const int64_t last = (run.count - 1) / codes.token_group * codes.token_stride;
    for (int64_t at = 0; at < last + token_bytes; at += 64) {
      __builtin_prefetch(lanes.run[i].scale + at, 0, 2);
      if (!codes.symmetric) __builtin_prefetch(lanes.run[i].zero + at, 0, 2);
    }
  }
}

template <class T>
void widen_parameters(const KVBlock& block, KVLanes& lanes, const KVBlock& next,
                      const KVLanes& next_lanes, int32_t head_dim) {
  using V = typename T::V;
  if (next.present != 0) fetch_parameters(next, next_lanes, head_dim);
  int64_t group = 0;
  for (uint8_t& of_lane : lanes.group) of_lane = 0;
  for (int64_t i = 0; i < block.num_runs; ++i) {
    const KVRun& run = block.run[i];
    if (lanes.format[run.lane] != KVFormat::kCodes) continue;
    if (lanes.codes->by_channel) {
      group = widen_by_channel<V>(run, lanes.run[i], group, head_dim, lanes);
    } else {
      widen_by_token<V>(run, lanes.run[i], lanes);
    }
  }
  lanes.folded = folds(lanes);
}

// ---- codes ----

// One way to read codes, known when compiling.
template <int kBitsOf, bool kZeroFirstOf, bool kByChannelOf>
struct Coding {
  static constexpr int kBits = kBitsOf;
  static constexpr bool kZeroFirst = kZeroFirstOf, kByChannel = kByChannelOf, kPlain = false;
};
// Codes as the numbers they are (folded-inl.h).
template <int kBitsOf>
struct PlainCoding {
  static constexpr int kBits = kBitsOf;
  static constexpr bool kByChannel = false, kPlain = true;
};

// body(Coding) of what `codes` says.
template <int kBits, class Body>
inline void with_coding_of(const KVCodes& codes, const Body& body) {
  if (codes.by_channel)
    return codes.zero_first ? body(Coding<kBits, true, true>{})
                            : body(Coding<kBits, false, true>{});
  return codes.zero_first ? body(Coding<kBits, true, false>{})
                          : body(Coding<kBits, false, false>{});
}
template <class Body>
inline void with_widening(const KVCodes& codes, const Body& body) {
  if (codes.bits == 8) return with_coding_of<8>(codes, body);
  if (codes.bits == 4) return with_coding_of<4>(codes, body);
  return with_coding_of<2>(codes, body);
}
template <class Body>
inline void with_plain(const KVCodes& codes, const Body& body) {
  return codes.bits == 8 ? body(PlainCoding<8>{}) : body(PlainCoding<4>{});
}
template <class Body>
inline void with_coding(const KVLanes& lanes, const Body& body) {
  return lanes.folded ? with_plain(*lanes.codes, body) : with_widening(*lanes.codes, body);
}

template <class C, class V>
inline V coded_value(V code, V scale, V zero) {
  return C::kZeroFirst ? mul(sub(code, zero), scale) : sub(mul(scale, code), zero);
}

// Channels [d, d + lanes of V) of the key or value in a lane. `group`: where the parameters of
// those channels begin, by token.
template <class T, class C>
inline typename T::V coded_channels(const KVLanes& lanes, int64_t lane, int64_t d, int64_t group,
                                    int64_t head_dim) {
  using V = typename T::V;
  const V code = T::template codes<C::kBits>(lanes.at[lane], d);
  if constexpr (C::kPlain) {
    return code;
  } else if constexpr (C::kByChannel) {
    const int64_t at = lanes.group[lane] * head_dim + d;
    return coded_value<C>(code, V::load(lanes.scale + at), V::load(lanes.zero + at));
  } else {
    return coded_value<C>(code, V::set1(lanes.scale[group + lane]),
                          V::set1(lanes.zero[group + lane]));
  }
}

// All channels of one lane, in order.
template <class T>
void load_coded_row(const KVLanes& lanes, int64_t lane, int64_t head_dim, float* row) {
  with_coding(lanes, [&](auto coding) {
    using V = typename T::V;
    for (int64_t d = 0; d < head_dim; d += V::kLanes) {
      const int64_t group = d / lanes.codes->channel_group * kTileKeys;
      coded_channels<T, decltype(coding)>(lanes, lane, d, group, head_dim).store(row + d);
    }
  });
}

// The channels of one word of codes of V::kLanes keys, from number kField on, and their parameters.
template <class T, class C, int kField = 0>
inline void part_word(typename T::V word, const float* scale, const float* zero, float* k_tile) {
  using V = typename T::V;
  constexpr int64_t kChannel = int64_t{kField} * kTileKeys;
  const V code = T::template field<kField * C::kBits, C::kBits>(word);
  const V s = C::kByChannel ? V::set1(scale[kField]) : V::load(scale);
  const V z = C::kByChannel ? V::set1(zero[kField]) : V::load(zero);
  coded_value<C>(code, s, z).store(k_tile + kChannel);
  if constexpr (kField + 1 < 32 / C::kBits) part_word<T, C, kField + 1>(word, scale, zero, k_tile);
}

// Words [w, w + lanes of V) of V::kLanes keys, turned so that lanes are keys; beyond `words` zeros.
template <class T>
[[gnu::always_inline]] inline void turn_words(const void* const* keys, int64_t w, int64_t words,
                                              typename T::V (&rows)[T::V::kLanes]) {
  using V = typename T::V;
  const int64_t n = words - w;
#pragma GCC unroll 16
  for (int64_t i = 0; i < V::kLanes; ++i) {
    const char* at = static_cast<const char*>(keys[i]) + 4 * w;
    rows[i] = n >= V::kLanes ? V::load(at) : V::load_first(at, n);
  }
  T::transpose(rows);
}

// V::kLanes keys, turned by words of codes and parted afterwards. By channel, all of one group.
template <class T, class C>
void load_coded_keys(const KVLanes& lanes, int64_t lane, int64_t head_dim, float* k_tile) {
  using V = typename T::V;
  constexpr int64_t kLanes = V::kLanes, kPerWord = 32 / C::kBits;
  const int64_t words = head_dim / kPerWord, words_a_group = lanes.codes->channel_group / kPerWord;
  const int64_t first = C::kByChannel ? lanes.group[lane] * head_dim : lane;
  const float *scale = lanes.scale + first, *zero = lanes.zero + first;
  int64_t left = words_a_group;
  for (int64_t w = 0; w < words; w += kLanes) {
    V rows[kLanes];
    turn_words<T>(lanes.at + lane, w, words, rows);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) {
      if (i >= words - w) break;
      part_word<T, C>(rows[i], scale, zero, k_tile);
      k_tile += kPerWord * kTileKeys;
      if (C::kByChannel) {
        scale += kPerWord, zero += kPerWord;
      } else if (--left == 0) {
        scale += kTileKeys, zero += kTileKeys;
        left = words_a_group;
      }
    }
  }
}

// Their words as they are (code_scores-inl.h).
template <class T>
void load_key_words(const KVLanes& lanes, int64_t lane, int64_t head_dim, float* k_tile) {
  using V = typename T::V;
  const int64_t words = head_dim * lanes.codes->bits / 32;
  for (int64_t w = 0; w < words; w += V::kLanes) {
    V rows[V::kLanes];
    turn_words<T>(lanes.at + lane, w, words, rows);
#pragma GCC unroll 16
    for (int64_t i = 0; i < V::kLanes; ++i)
      if (w + i < words) rows[i].store(k_tile + (w + i) * kTileKeys);
  }
}

}  // namespace
}  // namespace larder::cpu
