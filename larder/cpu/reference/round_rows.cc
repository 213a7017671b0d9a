#include "larder/cpu/reference/element.h"
#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

void round_rows(const Exec&, const TensorView& out, const TensorView& x, DType compute) {
  for (int64_t r = 0; r < x.shape[0]; ++r) {
    for (int64_t i = 0; i < x.shape[1]; ++i) {
      double held = 0;  // room for any compute type
      write_element(&held, compute, 0, x.as<float>()[r * x.stride[0] + i]);
      const float rounded = read_element(&held, compute, 0);
      write_element(out.data, out.dtype, r * out.stride[0] + i, rounded);
    }
  }
}

}  // namespace larder::cpu::reference
