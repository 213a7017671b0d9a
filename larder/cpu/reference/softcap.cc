#include <cmath>

#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

void softcap(const Exec&, float* x, int64_t count, float cap) {
  for (int64_t i = 0; i < count; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

}  // namespace larder::cpu::reference
