// The product that the amx_bf16 set adds to avx512_bf16: bf16 activations with bf16 weights by
// TDPBF16PS (Intel SDM), which multiplies tiles of 16 rows of 64 bytes.
//
// 16 rows of w are a tile as they lie in memory, 32 elements of k a step; activations are laid out
// by pack_rows_amx so that a tile is 16 pairs of k by up to 16 rows. A tile of sums is then 16
// columns of the output by as many rows, which leave it transposed. In each step the pairs' first
// elements are multiplied and added in order, beginning at zero, the second ones likewise, and the
// two sums, added, go onto the output's: every product a fused multiply-add, subnormal numbers
// zero. A row's bits so depend on nothing beside it, in decode and prefill alike.
#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // GCC, clang
#include "larder/cpu/simd/fetch-inl.h"
#include "larder/cpu/simd/range_ops.h"
#include "larder/cpu/simd/tile_avx512.h"

namespace larder::cpu {
namespace {

using V = VecAvx512;
constexpr int64_t kEdge = kAmxRows;  // rows and columns of a tile of sums
constexpr int64_t kStepBytes = 64;   // of a row of w: 32 elements
constexpr int64_t kPairsAStep = kStepBytes / 4;
// Activations that stay in the L2 cache (2 MiB where there is AMX) while all of w passes by.
constexpr int64_t kBlockBytes = int64_t{1} << 20;

// What LDTILECFG reads (SDM, "TILECFG").
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14]{};
  uint16_t row_bytes[16]{};
  uint8_t rows[16]{};
};

// The intrinsics do not tell GCC what memory they read.
[[gnu::always_inline]] inline void is_read(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

// Tiles 0 to 3 hold sums, 4 and 5 rows of w, 6 and 7 activations.
void configure_tiles(int64_t group_rows) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = 16;
    config.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 64 : 4 * group_rows);
  }
  is_read(&config);
  _tile_loadconfig(&config);
}

// The intrinsics want the tile's number as a literal.
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, int64_t stride) {
  is_read(from);
  if constexpr (kTile == 4) _tile_loadd(4, from, stride);
  if constexpr (kTile == 5) _tile_loadd(5, from, stride);
  if constexpr (kTile == 6) _tile_loadd(6, from, stride);
  if constexpr (kTile == 7) _tile_loadd(7, from, stride);
}

// Columns of w from `at` on, `count` of them still in the matrix.
struct Columns {
  const char* at;
  int64_t stride, count;
};

// 16 columns, bytes [begin, begin + 64) of each; what the matrix does not hold is zero.
template <int kTile>
[[gnu::always_inline]] inline void load_w(const Columns& w, int64_t begin, int64_t row_bytes) {
  const int64_t bytes = row_bytes - begin;
  if (w.count >= kEdge && bytes >= kStepBytes) return load_tile<kTile>(w.at + begin, w.stride);
  alignas(64) char copy[kEdge][kStepBytes];
  const __mmask64 mask = bytes >= kStepBytes ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
  for (int64_t c = 0; c < kEdge; ++c) {
    const __m512i row = c < w.count ? _mm512_maskz_loadu_epi8(mask, w.at + c * w.stride + begin)
                                    : _mm512_setzero_si512();
    _mm512_store_si512(copy[c], row);
  }
  load_tile<kTile>(copy, kStepBytes);
}

// One tile of sums, [16 columns, rows], to out, bias and residual added.
void finish(const TiledMatmul& t, const float (*sums)[kEdge], int64_t row, int64_t col,
            int64_t columns) {
  const MatmulRange& m = t.m;
  const int64_t rows = t.rows - row < kEdge ? t.rows - row : kEdge;
  const int64_t n = columns < kEdge ? columns : kEdge;
  V lanes[kEdge];
#pragma GCC unroll 16
  for (int64_t c = 0; c < kEdge; ++c) lanes[c] = V::load_first(sums[c], rows);
  transpose_avx512(lanes);
  const V bias = m.bias ? V::load_first(m.bias + col, n) : V::zero();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * m.out_stride + col;
    V sum = lanes[r];
    if (m.bias) sum = add(sum, bias);
    if (m.residual) sum = add(V::load_first(m.residual + at, n), sum);
    sum.store_first(m.out + at, n);
  }
}

// What one step of all tiles of sums does: kA x 16 columns by kB groups of rows.
template <int kA, int kB>
[[gnu::always_inline]] inline void multiply_step() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kB > 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kA > 1) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kA > 1 && kB > 1) _tile_dpbf16ps(3, 5, 7);
}

template <int kA, int kB>
void block(const TiledMatmul& t, int64_t group, int64_t col, int64_t columns, FetchShare fetch) {
  const MatmulRange& m = t.m;
  const int64_t row_bytes = m.k * 2, x_row = t.group_rows * 4;
  const Columns first{static_cast<const char*>(m.w) + col * m.w_stride, m.w_stride, columns};
  const Columns second{first.at + kEdge * m.w_stride, m.w_stride, columns - kEdge};
  const char* x = t.packed + group * t.group_bytes;
  _tile_zero(0);
  if constexpr (kB > 1) _tile_zero(1);
  if constexpr (kA > 1) _tile_zero(2);
  if constexpr (kA > 1 && kB > 1) _tile_zero(3);
  for (int64_t begin = 0; begin < row_bytes; begin += kStepBytes, x += kPairsAStep * x_row) {
    fetch.step(begin);
    load_tile<6>(x, x_row);
    if constexpr (kB > 1) load_tile<7>(x + t.group_bytes, x_row);
    load_w<4>(first, begin, row_bytes);
    if constexpr (kA > 1) load_w<5>(second, begin, row_bytes);
    multiply_step<kA, kB>();
  }
  alignas(64) float sums[kEdge][kEdge];
  const int64_t row = group * kEdge;
  _tile_stored(0, sums, kStepBytes);
  finish(t, sums, row, col, columns);
  if constexpr (kB > 1) {
    _tile_stored(1, sums, kStepBytes);
    finish(t, sums, row + kEdge, col, columns);
  }
  if constexpr (kA > 1) {
    _tile_stored(2, sums, kStepBytes);
    finish(t, sums, row, col + kEdge, columns - kEdge);
  }
  if constexpr (kA > 1 && kB > 1) {
    _tile_stored(3, sums, kStepBytes);
    finish(t, sums, row + kEdge, col + kEdge, columns - kEdge);
  }
}

// Groups [begin, end) of rows with `columns` <= 32 columns from `col` on. Meanwhile the columns
// after them are asked for, in the order in which they lie.
void column(const TiledMatmul& t, int64_t begin, int64_t end, int64_t col, int64_t columns) {
  // With more rows memory is no limit.
  const int64_t bytes = t.rows > kRowsThatWait ? 0 : kAmxColumns * t.m.w_stride;
  const int64_t all = (end - begin + 1) / 2;
  const int64_t steps = t.m.k * 2 / kStepBytes + 1;
  const char* next = static_cast<const char*>(t.m.w) + (col + kAmxColumns) * t.m.w_stride;
  for (int64_t group = begin; group < end; group += 2) {
    const int64_t turn = (group - begin) / 2;
    const FetchShare fetch(next, bytes, steps, turn, 1, all);
    const bool two_groups = group + 1 < end;
    if (columns > kEdge) {
      two_groups ? block<2, 2>(t, group, col, columns, fetch)
                 : block<2, 1>(t, group, col, columns, fetch);
    } else {
      two_groups ? block<1, 2>(t, group, col, columns, fetch)
                 : block<1, 1>(t, group, col, columns, fetch);
    }
  }
}

}  // namespace

void pack_rows_amx(const TiledMatmul& t, const void* x, int64_t x_stride, int64_t group_begin,
                   int64_t group_end) {
  const int64_t group_rows = t.group_rows;
  for (int64_t group = group_begin; group < group_end; ++group) {
    char* to = t.packed + group * t.group_bytes;
    for (int64_t begin = 0; begin < t.m.k; begin += 2 * kPairsAStep) {
      const int64_t left = t.m.k - begin;
      const auto mask = static_cast<__mmask32>(left >= 32 ? ~0u : (1u << left) - 1);
      V rows[kEdge];
      for (int64_t r = 0; r < kEdge; ++r) {
        const int64_t row = group * kEdge + r;
        rows[r] = V::zero();
        if (row >= t.rows) continue;
        const char* at = static_cast<const char*>(x) + row * x_stride + begin * 2;
        rows[r].v = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, at));
      }
      transpose_avx512(rows);
      for (int64_t pair = 0; pair < kPairsAStep; ++pair, to += 4 * group_rows)
        rows[pair].store_first(to, group_rows);
    }
  }
}

void matmul_amx_bf16(const TiledMatmul& t, int64_t group_begin, int64_t group_end,
                     int64_t col_begin, int64_t col_end) {
  configure_tiles(t.group_rows);
  const int64_t fit = kBlockBytes / (t.group_bytes + 1) / 2 * 2, most = fit > 2 ? fit : 2;
  for (int64_t group = group_begin; group < group_end; group += most) {
    const int64_t end = group + most < group_end ? group + most : group_end;
    for (int64_t col = col_begin; col < col_end; col += kAmxColumns) {
      const int64_t columns = col_end - col < kAmxColumns ? col_end - col : kAmxColumns;
      column(t, group, end, col, columns);
    }
  }
  _tile_release();
}

}  // namespace larder::cpu
#endif
