// hqq: the zero point of each group moves so that a sparse error (the p-norm, p = 0.7, of what
// quantization changes) gets small; the scale stays. One rule ties the groups together: rounds end
// when the mean error of the whole tensor no longer falls.
#include <algorithm>

#include "larder/cache/quantizer_methods.h"

namespace larder {
namespace {

constexpr int kRounds = 20;
constexpr float kInverseBeta = 0.1f, kPower = -0.3f;  // p - 1

// A group while it is solved: s is 1 / scale; z stays NaN for a group that is not finite.
struct Start {
  float s, z;
};

Start start_of(DType dtype, const GroupRange& range, int32_t max_code) {
  const float width = range.max - range.min;
  // torch divides a number by a tensor so: two roundings.
  float s = width > 1e-4f ? std::min(1 / width * static_cast<float>(max_code), 2e4f) : 1;
  // Where the width or -min * s is no number of the dtype, transformers gets an infinity.
  if (std::isinf(width)) {
    s = static_cast<float>(max_code /
                           (static_cast<double>(range.max) - static_cast<double>(range.min)));
  }
  const float most = largest(dtype) * 0.9f;
  if (std::fabs(range.min) * s > most) s = most / std::fabs(range.min);
  return {s, -range.min * s};
}

float nearest_code(float x, float s, float z, float max_code) {
  return std::clamp(std::nearbyint(x * s + z), 0.0f, max_code);
}

// The sum of a group's terms, in the order in which torch adds f32 on 8 lanes: where a code sits on
// a boundary, as many do that were quantized before, the last bit of z decides. Along a row: lanes,
// four vectors at a time. Down a column: one by one for whole sets of 32 columns, else four at a
// time. Sixteen additions make a partial sum.
class TorchSum {
 public:
  TorchSum(int64_t size, int lanes, int ways)
      : lanes_(lanes),
        ways_(ways),
        in_lanes_(size / lanes * lanes),
        in_ways_(size / lanes / ways * ways * lanes) {}

  void add(int64_t i, float term) {
    if (i >= in_lanes_) {
      tail_ += term;
      return;
    }
    const int64_t vector = i / lanes_;
    Partial& p = partial_[i < in_ways_ ? vector % ways_ : 0][i % lanes_];
    if (i >= in_ways_) p = {p.recent + p.before, 0};
    p.recent += term;
    if (i < in_ways_ && vector / ways_ % 16 == 15) p = {0, p.before + p.recent};
  }

  float total() const {
    float sum = tail_;
    for (int lane = 0; lane < lanes_; ++lane) {
      float of_lane = partial_[0][lane].recent + partial_[0][lane].before;
      for (int way = 1; way < ways_; ++way)
        of_lane += partial_[way][lane].recent + partial_[way][lane].before;
      sum += of_lane;
    }
    return sum;
  }

 private:
  struct Partial {
    float recent = 0, before = 0;
  };
  int lanes_, ways_;
  int64_t in_lanes_, in_ways_;
  Partial partial_[4][8];
  float tail_ = 0;
};

struct Group {
  const float* x;
  int64_t size, stride;
  TorchSum sum;
};

Group group_at(const Quantizer& quantizer, const FlatGroups& groups, const float* x, int64_t g) {
  const int64_t size = quantizer.group_size;
  const bool column = quantizer.order() == KVOrder::kFlatColumns;
  const int ways = column && g < groups.groups / 32 * 32 ? 1 : 4;
  return {x + groups.start(g), size, groups.stride, TorchSum(size, column ? 1 : 8, ways)};
}

// One round over a group: its new z, and the sum of |error| with the old one.
float solve_group(Group group, float s, float z, float max_code, double& error) {
  for (int64_t i = 0; i < group.size; ++i) {
    const float value = group.x[i * group.stride];
    const float q = nearest_code(value, s, z, max_code);
    const float difference = value - (q - z) / s;
    const float distance = std::fabs(difference);
    error += static_cast<double>(distance);
    const float shrunk = std::max(distance - kInverseBeta * std::pow(distance, kPower), 0.0f);
    group.sum.add(i, q - (value - std::copysign(shrunk, difference)) * s);
  }
  return group.sum.total() / static_cast<float>(group.size);
}

}  // namespace

void quantize_hqq(const Quantizer& quantizer, const FlatGroups& groups, const float* x,
                  uint8_t* codes, float* scale, float* zero) {
  const int64_t size = quantizer.group_size, stride = groups.stride;
  const auto max_code = static_cast<float>(quantizer.max_code());
  for (int64_t g = 0; g < groups.groups; ++g) {
    const GroupRange range = range_of(x + groups.start(g), size, stride);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Start start =
        range.finite ? start_of(quantizer.dtype, range, quantizer.max_code()) : Start{nan, nan};
    scale[g] = start.s, zero[g] = start.z;
  }
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    double error = 0;
    for (int64_t g = 0; g < groups.groups; ++g) {
      if (std::isnan(scale[g])) continue;
      const float moved =
          solve_group(group_at(quantizer, groups, x, g), scale[g], zero[g], max_code, error);
      if (std::isfinite(moved)) zero[g] = moved;
    }
    if (!(error < best)) break;
    best = error;
  }
  for (int64_t g = 0; g < groups.groups; ++g) {
    const int64_t start = groups.start(g);
    for (int64_t i = start; i < start + size * stride; i += stride)
      codes[i] = clamped_code(x[i] * scale[g] + zero[g], quantizer.max_code());
    if (std::isnan(scale[g])) continue;
    scale[g] = saturated_to(quantizer.dtype, 1 / static_cast<double>(scale[g]));
    zero[g] = saturated_to(quantizer.dtype, static_cast<double>(zero[g]));
  }
}

}  // namespace larder
