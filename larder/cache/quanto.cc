// quanto: an affine code from the extremes of a group.
//   scale = (max - min) / max_code, shift = -min, code = round-half-even((x + shift) / scale)
#include "larder/cache/quantizer_methods.h"

namespace larder {
namespace {

// The step between codes. A range that the dtype cannot hold is halved into it by the division
// before it is rounded; transformers gets an infinity there.
float scale_of(DType dtype, const GroupRange& range, int32_t max_code) {
  const float width = rounded_to(dtype, range.max - range.min);
  const float scale = rounded_to(dtype, width / static_cast<float>(max_code));
  if (std::isfinite(scale)) return scale;
  return saturated_to(dtype,
                      (static_cast<double>(range.max) - static_cast<double>(range.min)) / max_code);
}

}  // namespace

void quantize_quanto(const Quantizer& quantizer, const FlatGroups& groups, const float* x,
                     uint8_t* codes, float* scale, float* shift) {
  const DType dtype = quantizer.dtype;
  const int64_t size = quantizer.group_size, stride = groups.stride;
  for (int64_t g = 0; g < groups.groups; ++g) {
    const int64_t start = groups.start(g);
    const GroupRange range = range_of(x + start, size, stride);
    scale[g] = range.finite ? scale_of(dtype, range, quantizer.max_code())
                            : std::numeric_limits<float>::quiet_NaN();
    shift[g] = range.finite ? -range.min : scale[g];
    for (int64_t i = start; i < start + size * stride; i += stride) {
      const float above = rounded_to(dtype, x[i] + shift[g]);
      codes[i] = clamped_code(rounded_to(dtype, above / scale[g]), quantizer.max_code());
    }
  }
}

}  // namespace larder
