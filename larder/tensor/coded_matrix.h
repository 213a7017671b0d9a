// Weights as 8-bit or 4-bit codes, and rows of activations as int8, in groups of kCodeGroup along k
// (docs/weights.md draws the bytes). Plain data that the kernels multiply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace larder {

// How a matrix is kept. In int8 a weight is scale * code, with codes -127..127 stored as code +
// 128. In int4 it is scale * code + minimum, with codes 0..15. Scales and minima are bf16, one of
// each a row and group.
enum class WeightFormat : uint8_t { kStored, kInt8, kInt4 };

std::string_view weight_format_name(WeightFormat format);  // "stored", "int8", "int4"
std::optional<WeightFormat> weight_format_from_name(std::string_view name);

constexpr int64_t kCodeGroup = 32;  // neighbours along k that share a scale; a row's last may be
                                    // shorter: it is filled up with zeros
constexpr int64_t kCodePanel = 16;  // rows of a matrix that lie side by side

// A view of a matrix in codes, valid as long as the memory. Panels of 16 rows follow each other,
// the last filled up with rows of zeros. A panel is the parameters of all its groups, then their
// codes:
//   int8: bf16 scale[groups][16], filled up to 64 bytes; u8 code[groups][8][16][4]
//   int4: bf16 {scale, minimum}[groups][2][16];          u8 code[groups][4][16][4]
// where code[g][j][r][i] belongs to row r and k = 32 g + 4 j + i; in int4 the low nibbles of byte
// [g][j][r][i] belong to k = 32 g + 8 j + i, the high ones to 4 further.
struct CodedMatrix {
  const std::byte* data = nullptr;  // aligned to 64
  WeightFormat format = WeightFormat::kInt8;
  int64_t rows = 0, k = 0;
};

constexpr int64_t code_groups(int64_t k) { return (k + kCodeGroup - 1) / kCodeGroup; }
constexpr int64_t code_panels(int64_t rows) { return (rows + kCodePanel - 1) / kCodePanel; }
constexpr int64_t panel_param_bytes(WeightFormat format, int64_t k) {
  const int64_t bytes = code_groups(k) * kCodePanel * (format == WeightFormat::kInt8 ? 2 : 4);
  return (bytes + 63) / 64 * 64;
}
constexpr int64_t panel_bytes(WeightFormat format, int64_t k) {
  const int64_t codes = code_groups(k) * kCodeGroup * kCodePanel;
  return panel_param_bytes(format, k) + (format == WeightFormat::kInt8 ? codes : codes / 2);
}
constexpr int64_t coded_bytes(WeightFormat format, int64_t rows, int64_t k) {
  return code_panels(rows) * panel_bytes(format, k);
}

// What the codes of one row stand for: [k] f32. In int4 the product is rounded, then the sum.
void widen_row(const CodedMatrix& matrix, int64_t row, float* out);

// One group of kCodedRows rows of activations, side by side as a kernel reads them: k = 4 j + i of
// row r is at [j][r][i]. x = scale * code with 15-bit codes = 128 * high + low, low in -64..63;
// beside int4 weights x = high_scale * high, which is enough there.
constexpr int kCodedRows = 12;
constexpr int kCodeBase = 128;
struct CodedRowGroup {
  int8_t high[kCodeGroup / 4][kCodedRows][4];
  int8_t low[kCodeGroup / 4][kCodedRows][4];
  float scale[kCodedRows];
  float high_scale[kCodedRows];  // 128 * scale
  float high_sum[kCodedRows];    // high_scale * (sum of high), for the minima of int4
  int32_t offset[kCodedRows];    // -128 * (sum of the codes), for the offset of int8
};

// A view of rows of activations in codes: group[block][g] of rows 12 * block .. + 11. What belongs
// to no row is not written.
struct CodedRows {
  CodedRowGroup* group = nullptr;
  int64_t rows = 0, k = 0;
};

constexpr int64_t coded_rows_bytes(int64_t rows, int64_t k) {
  return (rows + kCodedRows - 1) / kCodedRows * code_groups(k) *
         static_cast<int64_t>(sizeof(CodedRowGroup));
}

}  // namespace larder
