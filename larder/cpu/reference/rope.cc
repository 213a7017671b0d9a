#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

// Products are rounded before they are added, in every set: the turn has the same bits everywhere.
void rope(const Exec&, const TensorView& x, const float* cos_sin, int64_t half) {
  for (int64_t token = 0; token < x.shape[0]; ++token) {
    const float* cos = cos_sin + token * 2 * half;
    const float* sin = cos + half;
    for (int64_t head = 0; head < x.shape[1]; ++head) {
      float* low = x.as<float>() + token * x.stride[0] + head * x.stride[1];
      float* high = low + half;
      for (int64_t i = 0; i < half; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
      }
    }
  }
}

}  // namespace larder::cpu::reference
