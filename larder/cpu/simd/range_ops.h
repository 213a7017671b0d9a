// What an instruction set implements: kernels over plain ranges. The files of larder/cpu/avx2,
// avx512, avx512_vnni, avx512_bf16 and amx_bf16 see only this, the vector types and plain-data
// headers; threads, views and everything with inline functions of its own stay in
// larder/cpu/simd/kernel_set.h, compiled for every machine.
#pragma once

#include <cstdint>

#include "larder/tensor/coded_matrix.h"
#include "larder/tensor/dtype.h"

namespace larder::cpu {

// One matmul, as MatmulArgs has it, in addresses and strides. Plain data, lives for one call.
struct MatmulRange {
  float* out;
  const float* residual;  // or nullptr
  int64_t out_stride;     // elements; also of residual
  const float* bias;      // or nullptr
  const void* x;
  const void* w;
  int64_t x_stride, w_stride;  // bytes
  int64_t k;
  DType x_type, w_type;
};

// One product of codes, as MatmulCodesArgs has it, likewise.
struct CodedRange {
  float* out;
  const float* residual;  // or nullptr
  int64_t out_stride;     // elements; also of residual
  const float* bias;      // or nullptr
  const CodedRowGroup* x;
  const char* w;  // panels
  int64_t groups, columns, panel_bytes, param_bytes;
  bool int4;  // else int8
};

// One product by tiles: x in `packed`, in groups of 16 rows, or of all rows where there are fewer:
// of each group, 32 elements of k at a time, [16 pairs of k, group_rows] words. What there is no
// element for is zero.
constexpr int64_t kAmxRows = 16, kAmxColumns = 32;  // a group; columns are handed out by so many
struct TiledMatmul {
  MatmulRange m;  // its x is not read
  char* packed;
  int64_t rows, group_rows, group_bytes;
};

// Thread rule: pure functions; ranges that do not overlap may run at once. Any alignment. What a
// function gives for an element depends on no other element but those its sum runs over: not on how
// a caller cuts the work.
struct RangeOps {
  // Computes out[row_begin .. row_end, col_begin .. col_end). False, and nothing done, for a pair
  // of types that the set has no code for.
  bool (*matmul)(const MatmulRange&, int64_t row_begin, int64_t row_end, int64_t col_begin,
                 int64_t col_end);
  // Computes out[row_begin .. row_end) of the panels. row_begin is a multiple of kCodedRows.
  void (*matmul_codes)(const CodedRange&, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                       int64_t panel_end);
  // All groups of one row, in place `row` of their block.
  void (*code_row)(CodedRowGroup* out, int64_t row, const float* x, int64_t k);
  // x rounded to `compute` and stored as out_type; each f32, bf16 or f16. False for other types.
  bool (*round)(void* out, DType out_type, const float* x, int64_t n, DType compute);
  void (*rms_norm)(float* out, const float* x, const float* weight, float weight_offset, float eps,
                   int64_t n);
  // Turns the pairs (low[i], high[i]).
  void (*rope)(float* low, float* high, const float* cos, const float* sin, int64_t half);
  void (*silu_mul)(float* gate, const float* up, int64_t n);
  void (*gelu_tanh_mul)(float* gate, const float* up, int64_t n);
  void (*gelu_mul)(float* gate, const float* up, int64_t n);
  void (*softcap)(float* x, int64_t n, float cap);
  // f32, bf16 and f16; false for other types.
  bool (*store)(void* out, DType dtype, const float* x, int64_t n);
  bool (*load)(float* out, const void* x, DType dtype, int64_t n);
  // In place. For tests: the functions that the kernels above are made of.
  void (*exp)(float* x, int64_t n);
  void (*tanh)(float* x, int64_t n);
  void (*erf)(float* x, int64_t n);
};

// Defined by larder/cpu/{avx2,avx512,avx512_vnni,avx512_bf16,amx_bf16}. Only for machines that have
// them.
#if defined(__x86_64__)
extern const RangeOps kAvx2Ops, kAvx512Ops;
void matmul_codes_avx2(const CodedRange& m, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                       int64_t panel_end);
void code_row_avx2(CodedRowGroup* out, int64_t row, const float* x, int64_t k);
void matmul_codes_avx512(const CodedRange& m, int64_t row_begin, int64_t row_end,
                         int64_t panel_begin, int64_t panel_end);
void code_row_avx512(CodedRowGroup* out, int64_t row, const float* x, int64_t k);
// Of the byte dot product; everything else of that set is the avx512 set's.
void matmul_codes_vnni(const CodedRange& m, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                       int64_t panel_end);
// Of the bf16 dot product; everything else of that set is the avx512_vnni set's.
bool matmul_bf16_dot(const MatmulRange& m, int64_t row_begin, int64_t row_end, int64_t col_begin,
                     int64_t col_end);
// Of the bf16 tiles; everything else of that set is the avx512_bf16 set's. pack_rows_amx lays
// groups of x [rows, k] bf16 out; matmul_amx_bf16 computes columns [col_begin, col_end) of the rows
// of groups, the first at a multiple of kAmxColumns.
void pack_rows_amx(const TiledMatmul& t, const void* x, int64_t x_stride, int64_t group_begin,
                   int64_t group_end);
void matmul_amx_bf16(const TiledMatmul& t, int64_t group_begin, int64_t group_end,
                     int64_t col_begin, int64_t col_end);
#endif

}  // namespace larder::cpu
