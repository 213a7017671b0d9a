#include "larder/cpu/reference/element.h"
#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

void store(void* out, DType dtype, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) write_element(out, dtype, i, x[i]);
}

}  // namespace larder::cpu::reference
