// How attention by bf16 dot products reads keys and values: 32 channels of a stored token, as bf16.
#pragma once

#include "larder/cpu/simd/attend-inl.h"
#include "larder/cpu/simd/tile_avx512.h"

namespace larder::cpu {
namespace {

using V = VecAvx512;
constexpr int64_t kPairs = kTileKeys / 2;
constexpr int64_t kWide = 2 * V::kLanes;  // channels that two vectors of a pair of keys hold

__m512bh as_bf16(V words) { return __builtin_bit_cast(__m512bh, words.v); }

struct AttendBf16Dot : TileAvx512 {
  static V operand(V v) {
    const __m256i narrow = __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(v.v));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16))};
  }
  static V load_query(const float* q, int64_t d) {
    return V::load_bf16(reinterpret_cast<const uint16_t*>(q) + d);
  }
  static Whole add_products(Whole sum, Whole a, Whole b) { return _mm512_dpwssd_epi32(sum, a, b); }
  static V multiply_add(V a, V b, V sum) {
    return {_mm512_dpbf16_ps(sum.v, as_bf16(a), as_bf16(b))};
  }
};
using T = AttendBf16Dot;

// Two vectors of f32 as 32 bf16.
__m512i round_to_bf16(V low, V high) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high.v, low.v));
}

// `count` floats, a multiple of 32, become as many bf16 in place: half the floats of room.
void round_to_pairs(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kWide)
    _mm512_storeu_si512(x + i / 2, round_to_bf16(V::load(x + i), V::load(x + i + V::kLanes)));
}

// Channels [d, d + 32) of the key or value in a lane, as bf16.
struct DenseRow {
  const KVLanes& lanes;
  __m512i operator()(int64_t lane, int64_t d) const {
    return _mm512_loadu_si512(static_cast<const uint16_t*>(lanes.at[lane]) + d);
  }
};
template <class C>
struct CodedRow {
  const KVLanes& lanes;
  int64_t head_dim;
  V half(int64_t lane, int64_t d) const {
    const int64_t group = d / lanes.codes->channel_group * kTileKeys;
    return coded_channels<T, C>(lanes, lane, d, group, head_dim);
  }
  __m512i operator()(int64_t lane, int64_t d) const {
    return round_to_bf16(half(lane, d), half(lane, d + V::kLanes));
  }
};
// Lanes that do not lie alike: codes and the exact tokens after them, or codes widened before.
struct AnyRow {
  const KVLanes& lanes;
  int64_t head_dim;
  __m512i operator()(int64_t lane, int64_t d) const {
    if (lanes.format[lane] == KVFormat::kBF16) return DenseRow{lanes}(lane, d);
    return round_to_bf16(load_as<T>(lanes, lane, d, V::kLanes, head_dim),
                         load_as<T>(lanes, lane, d + V::kLanes, V::kLanes, head_dim));
  }
};

// The codes themselves: whole numbers below 256, which bf16 holds exactly.
template <int kBits>
struct CodeRow {
  const KVLanes& lanes;
  __m512i operator()(int64_t lane, int64_t d) const {
    const char* at = static_cast<const char*>(lanes.at[lane]) + d * kBits / 8;
    if constexpr (kBits == 8) return round_to_bf16(T::codes<8>(at, 0), T::codes<8>(at, V::kLanes));
    // Both halves of a byte in one word, then bf16 from a table.
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m512i both = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
    const __m512i numbers =
        _mm512_setr_epi32(0x3F800000, 0x40404000, 0x40A04080, 0x40E040C0, 0x41104100, 0x41304120,
                          0x41504140, 0x41704160, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_permutexvar_epi16(_mm512_and_si512(both, _mm512_set1_epi32(0x000F000F)), numbers);
  }
};

// body(row) with what reads the lanes of one side.
template <class Body>
void with_rows(const KVLanes& lanes, int64_t head_dim, const Body& body) {
  if (lanes.folded && lanes.codes->bits == 8) return body(CodeRow<8>{lanes});
  if (lanes.folded) return body(CodeRow<4>{lanes});
  if (!all_equal(lanes.format, kTileKeys)) return body(AnyRow{lanes, head_dim});
  if (lanes.format[0] == KVFormat::kBF16) return body(DenseRow{lanes});
  if (lanes.format[0] != KVFormat::kCodes) return body(AnyRow{lanes, head_dim});
  with_coding(lanes, [&](auto coding) { body(CodedRow<decltype(coding)>{lanes, head_dim}); });
}

}  // namespace
}  // namespace larder::cpu
