#include <cmath>

#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

void rms_norm(const Exec&, const TensorView& out, const TensorView& x, const float* weight,
              float weight_offset, float eps) {
  const int64_t n = x.shape[1];
  for (int64_t r = 0; r < x.shape[0]; ++r) {
    const float* from = x.as<float>() + r * x.stride[0];
    float* to = out.as<float>() + r * out.stride[0];
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += from[i] * from[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * scale * (weight[i] + weight_offset);
  }
}

}  // namespace larder::cpu::reference
