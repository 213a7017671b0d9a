#include "larder/tensor/coded_matrix.h"

#include <algorithm>
#include <cstring>

#include "larder/tensor/dtype.h"

namespace larder {

std::string_view weight_format_name(WeightFormat format) {
  return format == WeightFormat::kInt8 ? "int8" : format == WeightFormat::kInt4 ? "int4" : "stored";
}

std::optional<WeightFormat> weight_format_from_name(std::string_view name) {
  for (const WeightFormat format :
       {WeightFormat::kStored, WeightFormat::kInt8, WeightFormat::kInt4})
    if (name == weight_format_name(format)) return format;
  return std::nullopt;
}

void widen_row(const CodedMatrix& matrix, int64_t row, float* out) {
  const bool int8 = matrix.format == WeightFormat::kInt8;
  const std::byte* panel = matrix.data + row / kCodePanel * panel_bytes(matrix.format, matrix.k);
  const int64_t lane = row % kCodePanel;
  const auto param = [&](int64_t index) {
    uint16_t bits;
    std::memcpy(&bits, panel + 2 * (index * kCodePanel + lane), sizeof bits);
    return bf16_to_f32(bits);
  };
  const auto* codes = reinterpret_cast<const uint8_t*>(panel) +
                      panel_param_bytes(matrix.format, matrix.k) + 4 * lane;
  for (int64_t i = 0; i < matrix.k; ++i) {
    const int64_t group = i / kCodeGroup;
    if (int8) {
      const int code = codes[i / 4 * 64 + i % 4];
      out[i] = param(group) * static_cast<float>(code - 128);
    } else {
      const int byte = codes[i / 8 * 64 + i % 4];
      const float product =
          param(2 * group) * static_cast<float>(i % 8 < 4 ? byte & 15 : byte >> 4);
      out[i] = product + param(2 * group + 1);
    }
  }
}

}  // namespace larder
