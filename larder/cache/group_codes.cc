#include "larder/cache/group_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace larder {
namespace {

// Round half to even for |x| < 2^22, in operations that every compiler vectorises.
float round_even(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

float largest(DType dtype) {
  return dtype == DType::kF16    ? 65504.0f
         : dtype == DType::kBF16 ? bf16_to_f32(0x7F7F)
                                 : std::numeric_limits<float>::max();
}

float rounded(float value, DType dtype) {
  const float most = largest(dtype);
  value = std::clamp(value, -most, most);
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(value));
  if (dtype == DType::kBF16) return std::clamp(bf16_to_f32(f32_to_bf16(value)), -most, most);
  return value;
}

// The smallest number of the dtype that is not below `value`.
float rounded_up(float value, DType dtype) {
  const float near = rounded(value, dtype);
  if (near >= value || dtype == DType::kF32) return near;
  // The spacing of the dtype is below 2^-7 of the number, or its smallest subnormal.
  const float step = std::max(std::fabs(value) * 0x1p-8f, 0x1p-24f);
  for (int doublings = -4; doublings <= 2; ++doublings) {
    const float up = rounded(value + std::ldexp(step, doublings), dtype);
    if (up >= value) return up;
  }
  return near;
}

float narrow(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMost, kMost));
}

// value = scale * (code - middle) - shift: both forms in one. `middle` is 0 where there is a shift.
struct Grid {
  float most = 15, middle = 0;
  DType dtype = DType::kF16;
};

// The codes that are nearest, as floats. Divides, so that a subnormal scale does no harm.
void nearest_codes(std::span<const float> x, const GroupScale& group, const Grid& grid,
                   float* codes) {
  if (group.scale == 0) {
    std::fill_n(codes, x.size(), grid.middle);
    return;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const float code = (x[i] + group.shift) / group.scale + grid.middle;
    codes[i] = round_even(std::min(std::max(code, 0.0f), grid.most));
  }
}

float squared_error(std::span<const float> x, const GroupScale& group, const Grid& grid,
                    const float* codes) {
  float sums[4]{};
  for (size_t i = 0; i < x.size(); ++i) {
    const float error = group.scale * (codes[i] - grid.middle) - group.shift - x[i];
    sums[i % 4] += error * error;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The grid over the middle `share` of [low, high].
GroupScale cover(float low, float high, float share, const Grid& grid) {
  if (grid.middle > 0) {
    const float reach = std::max(std::fabs(low), std::fabs(high)) * share;
    return {rounded_up(reach / (grid.middle - 1), grid.dtype), 0};
  }
  const float cut = (high / 2 - low / 2) * (1 - share);
  GroupScale group;
  group.shift = rounded_up(-(low + cut), grid.dtype);
  // Halved, so that the width of a range does not overflow, nor scale * code.
  const float half = ((high - cut) / 2 + group.shift / 2) / grid.most;
  constexpr float kMost = 0.99f * std::numeric_limits<float>::max();  // rounding may add to it
  group.scale = rounded(std::clamp(half, 0.0f, kMost / 2 / grid.most) * 2, grid.dtype);
  return group;
}

// The scale and shift with the least squared error for these codes.
GroupScale refit(std::span<const float> x, const float* codes, const Grid& grid) {
  const auto n = static_cast<double>(x.size());
  double sum_q = 0, sum_x = 0, sum_qq = 0, sum_qx = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double q = double{codes[i]} - grid.middle;
    sum_q += q, sum_x += x[i], sum_qq += q * q, sum_qx += q * x[i];
  }
  if (grid.middle > 0) return {rounded(narrow(sum_qq > 0 ? sum_qx / sum_qq : 0), grid.dtype), 0};
  const double spread = n * sum_qq - sum_q * sum_q;
  if (spread <= 0) return {0, rounded(narrow(-sum_x / n), grid.dtype)};
  const float scale = rounded(narrow((n * sum_qx - sum_q * sum_x) / spread), grid.dtype);
  return {scale, rounded(narrow((scale * sum_q - sum_x) / n), grid.dtype)};
}

// Tries ranges that clip the extremes, each improved by least squares given its codes.
GroupScale search(std::span<const float> x, float low, float high, const Grid& grid, float* codes) {
  GroupScale best = cover(low, high, 1, grid);
  float least = std::numeric_limits<float>::infinity();
  const auto consider = [&](const GroupScale& group) {
    nearest_codes(x, group, grid, codes);
    const float error = squared_error(x, group, grid, codes);
    if (group.scale >= 0 && error < least) best = group, least = error;
  };
  constexpr int kRanges = 8, kRefits = 2;
  constexpr float kRangeStep = 0.05f;
  for (int i = 0; i < kRanges; ++i) {
    consider(cover(low, high, 1 - kRangeStep * static_cast<float>(i), grid));
    for (int r = 0; r < kRefits; ++r) consider(refit(x, codes, grid));
  }
  return best;
}

bool all_finite(std::span<const float> x) {
  float sum = 0;  // of zeros, or NaN
  for (const float value : x) sum += value * 0.0f;
  return sum == 0;
}

}  // namespace

GroupScale encode_group(std::span<const float> x, const GroupFormat& format, uint8_t* codes) {
  if (!all_finite(x)) {
    std::memset(codes, 0, x.size());
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const bool symmetric = format.form == KVForm::kSymmetric;
  const Grid grid{static_cast<float>((1 << format.bits) - 1),
                  symmetric ? static_cast<float>(1 << (format.bits - 1)) : 0.0f,
                  format.scale_dtype};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): written before it is read
  std::array<float, kMaxGroup> found;
  const GroupScale group =
      format.search ? search(x, *low, *high, grid, found.data()) : cover(*low, *high, 1, grid);
  nearest_codes(x, group, grid, found.data());
  for (size_t i = 0; i < x.size(); ++i) codes[i] = static_cast<uint8_t>(found[i]);
  return group;
}

}  // namespace larder
