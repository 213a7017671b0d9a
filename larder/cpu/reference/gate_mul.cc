#include <cmath>

#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {
namespace {

float activate(float x, Activation act) {
  switch (act) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGeluTanh: {
      const float inner = 0.7978845608028654f * (x + 0.044715f * (x * x * x));  // sqrt(2 / pi)
      return 0.5f * x * (1.0f + std::tanh(inner));
    }
    case Activation::kGelu:
      break;
  }
  return 0.5f * x * (1.0f + std::erf(x * 0.7071067811865476f));  // sqrt(1 / 2)
}

}  // namespace

void gate_mul(const Exec&, const TensorView& gate, const TensorView& up, Activation act) {
  for (int64_t r = 0; r < gate.shape[0]; ++r) {
    float* g = gate.as<float>() + r * gate.stride[0];
    const float* u = up.as<float>() + r * up.stride[0];
    for (int64_t i = 0; i < gate.shape[1]; ++i) g[i] = activate(g[i], act) * u[i];
  }
}

}  // namespace larder::cpu::reference
