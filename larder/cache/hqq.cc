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

// Round to nearest even, by the spacing of numbers near 1.5 * 2^23: a form that compilers
// vectorise.
float nearest_code(float x, float s, float z, float max_code) {
  constexpr float kMagic = 12582912.0f;
  const float near = std::min(std::max(x * s + z, -1.0f), max_code + 1);
  return std::min(std::max((near + kMagic) - kMagic, 0.0f), max_code);
}

constexpr int kBlock = 32;  // elements at a time

// The sum of a group's terms, in the order in which torch adds f32 on 8 lanes: where a code sits on
// a boundary, as many do that were quantized before, the last bit of z decides. Along a row: 8
// lanes, 4 vectors at a time. Down a column: one by one in whole sets of 32 columns, else 4 at a
// time. Sixteen additions make a partial sum.
class TorchSum {
 public:
  enum class Order : uint8_t { kRow, kColumn, kEdgeColumn };
  explicit TorchSum(Order order)
      : sums_(order == Order::kColumn ? 1
              : order == Order::kRow  ? 32
                                      : 4),
        lanes_(order == Order::kRow ? 8 : 1) {}

  // The next `n` terms: kBlock of them, fewer at the end.
  void add(const float* terms, int n) {
    int i = 0;
    for (; i + sums_ <= n; i += sums_) {
      for (int k = 0; k < sums_; ++k) recent_[k] += terms[i + k];
      if (++rounds_ % 16 == 0) fold();
    }
    if (i == n) return;
    fold();
    for (; i + lanes_ <= n; i += lanes_)
      for (int k = 0; k < lanes_; ++k) before_[k] += terms[i + k];
    for (; i < n; ++i) tail_ += terms[i];
  }

  float total() {
    fold();
    float sum = tail_;
    for (int lane = 0; lane < lanes_; ++lane) {
      for (int k = lane + lanes_; k < sums_; k += lanes_) before_[lane] += before_[k];
      sum += before_[lane];
    }
    return sum;
  }

 private:
  void fold() {
    for (int k = 0; k < sums_; ++k) before_[k] += recent_[k], recent_[k] = 0;
  }

  int sums_, lanes_, rounds_ = 0;
  float recent_[kBlock] = {}, before_[kBlock] = {}, tail_ = 0;
};

// |x|^(p - 1) / beta is more than |x| below this, and the shrunk error 0.
constexpr float kNothingLeft = 0.17f;

struct Group {
  const float* x;
  int64_t size, stride;
  TorchSum::Order order;
};

// The terms of `n` elements; adds their |error| to the four of `error`.
void block_terms(const Group& group, int64_t first, int n, float s, float z, float max_code,
                 float* terms, double* error) {
  float distance[kBlock], difference[kBlock], most = 0;
  const float* x = group.x + first * group.stride;
  for (int i = 0; i < n; ++i) {
    const float value = x[i * group.stride], q = nearest_code(value, s, z, max_code);
    difference[i] = value - (q - z) / s;
    distance[i] = std::fabs(difference[i]);
    terms[i] = q - value * s;
    most = std::max(most, distance[i]);
  }
  for (int i = 0; i < n; ++i) error[i % 4] += static_cast<double>(distance[i]);
  if (most < kNothingLeft) return;
  for (int i = 0; i < n; ++i) {
    if (distance[i] < kNothingLeft) continue;
    const float shrunk = std::max(distance[i] - kInverseBeta * std::pow(distance[i], kPower), 0.0f);
    const float value = x[i * group.stride], q = nearest_code(value, s, z, max_code);
    terms[i] = q - (value - std::copysign(shrunk, difference[i])) * s;
  }
}

// One round over a group: its new z.
float solve_group(const Group& group, float s, float z, float max_code, double* error) {
  TorchSum sum(group.order);
  float terms[kBlock];
  for (int64_t i = 0; i < group.size; i += kBlock) {
    const int n = static_cast<int>(std::min<int64_t>(kBlock, group.size - i));
    block_terms(group, i, n, s, z, max_code, terms, error);
    sum.add(terms, n);
  }
  return sum.total() / static_cast<float>(group.size);
}

Group group_at(const Quantizer& quantizer, const FlatGroups& groups, const float* x, int64_t g) {
  TorchSum::Order order = TorchSum::Order::kRow;
  if (quantizer.order() == KVOrder::kFlatColumns)
    order = g < groups.groups / 32 * 32 ? TorchSum::Order::kColumn : TorchSum::Order::kEdgeColumn;
  return {x + groups.start(g), quantizer.group_size, groups.stride, order};
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
    double error[4] = {};
    for (int64_t g = 0; g < groups.groups; ++g) {
      if (std::isnan(scale[g])) continue;
      const float moved =
          solve_group(group_at(quantizer, groups, x, g), scale[g], zero[g], max_code, error);
      if (std::isfinite(moved)) zero[g] = moved;
    }
    const double sum = error[0] + error[1] + error[2] + error[3];
    if (!(sum < best)) break;
    best = sum;
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
