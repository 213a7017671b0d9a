#include "larder/cpu/reference/element.h"
#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

void load(float* out, const void* x, DType dtype, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = read_element(x, dtype, i);
}

}  // namespace larder::cpu::reference
