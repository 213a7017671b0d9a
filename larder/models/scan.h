// Causal convolutions and recurrences over the rows of a step, in the order of positions, so that a
// row's state has the same bits however its tokens were cut into steps. Threads take channels.
#pragma once

#include "larder/cache/layer.h"
#include "larder/tensor/exec.h"

namespace larder {

float softplus(float x);  // log(1 + exp(x))

// A depthwise convolution: out[t, c] = sum_k weight[c, k] * x[t - taps + 1 + k, c] + bias[c], then
// silu where asked. Inputs before the step come from the layer's window, which needs at least
// taps - 1 columns and is advanced.
struct CausalConv {
  TensorView x, out;              // [total_q, channels] f32, channels contiguous; not the same
  const float* weight = nullptr;  // [channels, taps]
  const float* bias = nullptr;    // [channels]; null = none
  int64_t taps = 0;
  bool silu = false;
};
void causal_conv(const Exec& exec, const Step& step, StateLayer& layer, const CausalConv& args);

// Mamba's recurrence (arXiv 2312.00752), by channel c and state n:
//   d = softplus(dt[t, c]);  s[c, n] = exp(d * a[c, n]) * s[c, n] + (d * b[t, n]) * u[t, c]
//   y[t, c] = sum_n s[c, n] * c[t, n] + skip[c] * u[t, c]
// All f32, rows with contiguous last axes; the layer's state is [channels, states].
struct SelectiveScan {
  TensorView u, dt, y;          // [total_q, channels]
  TensorView b, c;              // [total_q, states]
  const float* a = nullptr;     // [channels, states], negative
  const float* skip = nullptr;  // [channels]
};
void selective_scan(const Exec& exec, const Step& step, StateLayer& layer,
                    const SelectiveScan& args);

// Griffin's recurrence (arXiv 2402.19427), by channel c:
//   l = -8 * sigmoid(decay_gate[t, c]) * rate[c]
//   h[c] = exp(l) * h[c] + sqrt(1 - exp(2 l)) * x[t, c] * sigmoid(input_gate[t, c]);  y[t, c] =
//   h[c]
// with 1 in place of the root at position 0. The layer's state is [channels].
struct GatedLru {
  TensorView x, input_gate, decay_gate, y;  // [total_q, channels]; y may be x
  const float* rate = nullptr;              // [channels], positive
};
void gated_lru(const Exec& exec, const Step& step, StateLayer& layer, const GatedLru& args);

}  // namespace larder
