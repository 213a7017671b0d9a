#include "larder/tensor/encode_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "larder/base/error.h"

namespace larder {
namespace {

constexpr int kGroup = static_cast<int>(kCodeGroup);
constexpr int kLanes = 8;  // partial results side by side, which a compiler makes a vector of
constexpr uint16_t kBf16NaN = 0x7FC0;
constexpr float kSmallest = std::numeric_limits<float>::min();  // that is not subnormal

using Values = std::array<float, kGroup>;

// The codes of one group, with its parameters rounded to bf16.
struct GroupCodes {
  uint16_t scale = 0, minimum = 0;
  std::array<uint8_t, kGroup> code{};
};

// fold(..fold(fold(of(0), of(8)), of(16)).., ..): eight chains, then those.
template <class Of, class Fold>
float folded(const Of& of, const Fold& fold) {
  std::array<float, kLanes> part{};
  for (size_t l = 0; l < kLanes; ++l) part[l] = of(l);
  for (size_t i = kLanes; i < kGroup; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) part[l] = fold(part[l], of(i + l));
  for (size_t l = kLanes / 2; l > 0; l /= 2)
    for (size_t i = 0; i < l; ++i) part[i] = fold(part[i], part[i + l]);
  return part[0];
}
template <class Of>
float sum(const Of& of) {
  return folded(of, [](float a, float b) { return a + b; });
}
float smaller(float a, float b) { return a < b ? a : b; }
float larger(float a, float b) { return a > b ? a : b; }

bool all_finite(const Values& x) {
  uint32_t largest = 0;
  for (const float value : x)
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu);
  return largest < 0x7F800000u;
}

// Whole numbers are compared and clamped: the compiler makes vectors of that, of floats it does
// not.
int32_t clamped(int32_t x, int32_t low, int32_t high) {
  const int32_t above = x < low ? low : x;
  return above > high ? high : above;
}

void encode_int8(const Values& x, GroupCodes& out) {
  out.code.fill(128);
  out.scale = kBf16NaN;
  if (!all_finite(x)) return;
  const float most = folded([&](size_t i) { return std::fabs(x[i]); }, larger);
  out.scale = f32_to_bf16(most / 127);
  const float scale = bf16_to_f32(out.scale);
  out.scale = scale < kSmallest ? 0 : out.scale;
  const float inverse = scale < kSmallest ? 0 : 1 / scale;
  // Added to 1.5 * 2^23, a number is rounded to a whole one, ties to even, in the lowest bits. The
  // scale was rounded: the largest may land a little past 127.
  constexpr float kShift = 12582912.0f;
  for (size_t i = 0; i < kGroup; ++i) {
    const int32_t code =
        std::bit_cast<int32_t>(x[i] * inverse + kShift) - std::bit_cast<int32_t>(kShift);
    out.code[i] = static_cast<uint8_t>(clamped(code, -127, 127) + 128);
  }
}

// Codes 0..15 for given parameters, and their squared error.
struct Fit {
  Fit(const Values& x, float range, float wanted_scale, float wanted_minimum)
      : scale(bf16_to_f32(f32_to_bf16(wanted_scale))),
        minimum(bf16_to_f32(f32_to_bf16(wanted_minimum))) {
    // No pair that serves has steps this small, whose codes might not be whole numbers of 32 bits.
    const bool useless = scale < kSmallest || scale < range / 100;
    const float inverse = useless ? 0 : 1 / scale;
    for (size_t i = 0; i < kGroup; ++i) {
      // Halves go up; below zero the clamp takes what the cut rounds wrongly.
      const float place = (x[i] - minimum) * inverse;
      const auto nearest =
          static_cast<int32_t>(place + 0.5f);  // NOLINT(bugprone-incorrect-roundings)
      code[i] = static_cast<float>(clamped(nearest, 0, 15));
    }
    error = sum([&](size_t i) {
      const float off = scale * code[i] + minimum - x[i];
      return off * off;
    });
  }
  // The parameters that suit these codes best.
  Fit refitted(const Values& x, float range) const {
    const float sum_c = sum([&](size_t i) { return code[i]; }),
                sum_cc = sum([&](size_t i) { return code[i] * code[i]; }),
                sum_x = sum([&](size_t i) { return x[i]; }),
                sum_cx = sum([&](size_t i) { return code[i] * x[i]; });
    const float determinant = kGroup * sum_cc - sum_c * sum_c;
    if (determinant <= 0) return *this;
    const float fitted = (kGroup * sum_cx - sum_c * sum_x) / determinant;
    return Fit(x, range, fitted, (sum_x - fitted * sum_c) / kGroup);
  }

  float scale, minimum, error = 0;
  Values code{};
};

void encode_int4(const Values& x, GroupCodes& out) {
  out.code.fill(0);
  out.scale = out.minimum = kBf16NaN;
  if (!all_finite(x)) return;
  const float low = folded([&](size_t i) { return x[i]; }, smaller),
              range = folded([&](size_t i) { return x[i]; }, larger) - low;
  Fit best(x, range, range / 15, low);
  // Fewer steps than 15 leave the codes' ends unused, more cut the outermost weights.
  for (const float steps : {14.0f, 15.0f, 16.0f}) {
    const float scale = range / steps;
    const Fit fit = Fit(x, range, scale, low + (range - 15 * scale) / 2).refitted(x, range);
    if (fit.error < best.error) best = fit;
  }
  out.scale = f32_to_bf16(best.scale);
  out.minimum = f32_to_bf16(best.minimum);
  for (size_t i = 0; i < kGroup; ++i) out.code[i] = static_cast<uint8_t>(best.code[i]);
}

void put(std::byte* at, uint16_t bits) { std::memcpy(at, &bits, sizeof bits); }

// Places the codes of row `lane` of a panel.
void place(const GroupCodes& codes, WeightFormat format, int64_t k, int64_t group, int64_t lane,
           std::byte* panel) {
  auto* to = reinterpret_cast<uint8_t*>(panel) + panel_param_bytes(format, k) + 4 * lane;
  if (format == WeightFormat::kInt8) {
    put(panel + 2 * (group * kCodePanel + lane), codes.scale);
    for (int64_t j = 0; j < 8; ++j)
      std::memcpy(to + (group * 8 + j) * 64, &codes.code[static_cast<size_t>(4 * j)], 4);
    return;
  }
  put(panel + 2 * (2 * group * kCodePanel + lane), codes.scale);
  put(panel + 2 * ((2 * group + 1) * kCodePanel + lane), codes.minimum);
  for (int64_t j = 0; j < 4; ++j)
    for (int64_t i = 0; i < 4; ++i) {
      const auto at = static_cast<size_t>(8 * j + i);
      to[(group * 4 + j) * 64 + i] =
          static_cast<uint8_t>(codes.code[at] | (codes.code[at + 4] << 4));
    }
}

// One row as f32.
void widen(const TensorView& matrix, int64_t row, float* out) {
  const int64_t k = matrix.shape[1];
  if (matrix.dtype != DType::kBF16)
    return copy_into(TensorView::contiguous(out, DType::kF32, {1, k}),
                     matrix.slice(0, row, row + 1));
  const std::byte* from = matrix.bytes() + 2 * row * k;  // at any alignment
  for (int64_t i = 0; i < k; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    out[i] = bf16_to_f32(bits);
  }
}

// Rows [16 * panel, ..) of the matrix; `row` is room for one, filled up to whole groups.
void encode_panel(const TensorView& matrix, WeightFormat format, int64_t panel,
                  std::vector<Values>& row, std::byte* out) {
  const int64_t rows = matrix.shape[0], k = matrix.shape[1];
  float* values = row.front().data();
  std::memset(out, 0, static_cast<size_t>(panel_param_bytes(format, k)));
  for (int64_t lane = 0; lane < kCodePanel; ++lane) {
    const int64_t index = panel * kCodePanel + lane;
    if (index < rows) {
      widen(matrix, index, values);
      // What is behind a row meets zeros; it must not widen the last group's range.
      std::fill(values + k, values + row.size() * kGroup, values[k - 1]);
    } else {
      std::fill(values, values + row.size() * kGroup, 0.0f);
    }
    GroupCodes codes;
    for (size_t g = 0; g < row.size(); ++g) {
      format == WeightFormat::kInt8 ? encode_int8(row[g], codes) : encode_int4(row[g], codes);
      place(codes, format, k, static_cast<int64_t>(g), lane, out);
    }
  }
}

}  // namespace

void encode_matrix(const TensorView& matrix, WeightFormat format, std::byte* out,
                   ThreadPool& threads) {
  LARDER_ASSERT(matrix.shape.rank() == 2 && format != WeightFormat::kStored);
  const int64_t k = matrix.shape[1], bytes = panel_bytes(format, k);
  if (matrix.count() == 0) return;
  std::vector<std::vector<Values>> rows(static_cast<size_t>(threads.size()),
                                        std::vector<Values>(static_cast<size_t>(code_groups(k))));
  threads.parallel_for(code_panels(matrix.shape[0]), [&](int64_t begin, int64_t end, int thread) {
    for (int64_t panel = begin; panel < end; ++panel)
      encode_panel(matrix, format, panel, rows[static_cast<size_t>(thread)], out + panel * bytes);
  });
}

}  // namespace larder
