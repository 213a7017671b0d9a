#include "larder/cache/quantizer.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/quantizer_methods.h"

namespace larder {

KVOrder Quantizer::order() const {
  if (method == QuantMethod::kQuanto)
    return axis == 0 ? KVOrder::kFlatRows : KVOrder::kFlatChannels;
  return axis == 1 ? KVOrder::kFlatRows : KVOrder::kFlatColumns;
}

void check_quantizer(const Quantizer& quantizer, const char* what) {
  const bool quanto = quantizer.method == QuantMethod::kQuanto;
  const int32_t bits = quantizer.bits, axis = quantizer.axis;
  const bool known_bits = quanto ? bits == 2 || bits == 4 : (bits >= 1 && bits <= 4) || bits == 8;
  if (!known_bits) {
    fail(what, " of ", bits,
         " bits: ", quanto ? "quanto has nbits 2 and 4" : "hqq has nbits 1, 2, 3, 4 and 8");
  }
  if (axis != 0 && axis != (quanto ? -1 : 1)) {
    fail(what, " with axis ", axis, ": ",
         quanto ? "quanto has axis 0 and -1" : "hqq has axis 0 and 1");
  }
  if (quantizer.group_size < 1) {
    fail(what, " with q_group_size ", quantizer.group_size, "; it must be at least 1");
  }
}

FlatGroups::FlatGroups(const Quantizer& quantizer, int64_t count, int64_t last_dim)
    : groups(count / quantizer.group_size),
      order_(quantizer.order()),
      size_(quantizer.group_size),
      last_dim_(last_dim) {
  LARDER_ASSERT(groups * size_ == count);
  per_channel_ = count / last_dim / size_;
  if (order_ == KVOrder::kFlatColumns) stride = groups;
  if (order_ == KVOrder::kFlatChannels) {
    LARDER_ASSERT(per_channel_ * size_ * last_dim == count);
    stride = last_dim;
  }
}

int64_t FlatGroups::start(int64_t group) const {
  if (order_ == KVOrder::kFlatRows) return group * size_;
  if (order_ == KVOrder::kFlatColumns) return group;
  return group % per_channel_ * size_ * last_dim_ + group / per_channel_;
}

int64_t FlatGroups::of(int64_t element) const {
  if (order_ == KVOrder::kFlatRows) return element / size_;
  if (order_ == KVOrder::kFlatColumns) return element % groups;
  return element % last_dim_ * per_channel_ + element / last_dim_ / size_;
}

void quantize(const Quantizer& quantizer, const float* x, int64_t count, int64_t last_dim,
              uint8_t* codes, float* scale, float* zero) {
  const FlatGroups groups(quantizer, count, last_dim);
  if (quantizer.method == QuantMethod::kQuanto) {
    quantize_quanto(quantizer, groups, x, codes, scale, zero);
  } else {
    quantize_hqq(quantizer, groups, x, codes, scale, zero);
  }
}

float dequantize(const Quantizer& quantizer, uint8_t code, float scale, float zero) {
  const DType dtype = quantizer.dtype;
  const auto number = static_cast<float>(code);
  const float value = quantizer.method == QuantMethod::kQuanto
                          ? rounded_to(dtype, rounded_to(dtype, scale * number) - zero)
                          : rounded_to(dtype, rounded_to(dtype, number - zero) * scale);
  if (std::isfinite(value) || !std::isfinite(scale) || !std::isfinite(zero)) return value;
  const double wide_scale = scale, wide_zero = zero;
  return saturated_to(dtype, quantizer.method == QuantMethod::kQuanto
                                 ? wide_scale * number - wide_zero
                                 : (number - wide_zero) * wide_scale);
}

}  // namespace larder
