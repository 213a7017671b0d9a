#include <cmath>

#include "larder/cpu/reference/element.h"
#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {
namespace {

// One row of a coded matrix: where its panel is, and its place in it.
struct Row {
  WeightFormat format;
  const std::byte *params, *codes;
  int64_t lane;

  Row(const CodedMatrix& w, int64_t row)
      : format(w.format),
        params(w.data + row / kCodePanel * panel_bytes(w.format, w.k)),
        codes(params + panel_param_bytes(w.format, w.k)),
        lane(row % kCodePanel) {}
  int32_t code(int64_t group, int64_t i) const {
    if (format == WeightFormat::kInt8)
      return static_cast<int32_t>(codes[(group * 8 + i / 4) * 64 + 4 * lane + i % 4]) - 128;
    const auto byte = static_cast<int32_t>(codes[(group * 4 + i / 8) * 64 + 4 * lane + i % 4]);
    return i % 8 < 4 ? byte & 15 : byte >> 4;
  }
  float param(int64_t index) const {
    return read_element(params, DType::kBF16, index * kCodePanel + lane);
  }
};

float dot(const CodedRowGroup* x, size_t x_row, const Row& w, int64_t groups) {
  const bool int8 = w.format == WeightFormat::kInt8;
  float sum = 0;
  for (int64_t g = 0; g < groups; ++g) {
    int32_t whole = 0;
    for (int64_t i = 0; i < kCodeGroup; ++i) {
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8_t is a number here
      const int32_t high = x[g].high[i / 4][x_row][i % 4], low = x[g].low[i / 4][x_row][i % 4];
      whole += (int8 ? kCodeBase * high + low : high) * w.code(g, i);
    }
    const float scale =
        int8 ? w.param(g) * x[g].scale[x_row] : w.param(2 * g) * x[g].high_scale[x_row];
    sum = std::fma(scale, static_cast<float>(whole), sum);
    if (!int8) sum = std::fma(w.param(2 * g + 1), x[g].high_sum[x_row], sum);
  }
  return sum;
}

void matmul_one(const MatmulCodesArgs& args) {
  const int64_t groups = code_groups(args.w.k);
  for (int64_t j = 0; j < args.w.rows; ++j) {
    const Row w(args.w, j);
    for (int64_t r = 0; r < args.x.rows; ++r) {
      const CodedRowGroup* x = args.x.group + r / kCodedRows * groups;
      float sum = dot(x, static_cast<size_t>(r % kCodedRows), w, groups);
      if (args.bias) sum += args.bias[j];
      const int64_t at = r * args.out.stride[0] + j;
      if (args.residual) sum = args.residual[at] + sum;
      args.out.as<float>()[at] = sum;
    }
  }
}

}  // namespace

void matmul_codes(const Exec&, std::span<const MatmulCodesArgs> products) {
  for (const MatmulCodesArgs& args : products) matmul_one(args);
}

}  // namespace larder::cpu::reference
