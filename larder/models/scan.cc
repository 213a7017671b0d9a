#include "larder/models/scan.h"

#include <cmath>

namespace larder {

// Past 20 the difference from x is below half a unit in the last place of an f32.
float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

float* row_of(const TensorView& x, int64_t token) { return x.as<float>() + token * x.stride[0]; }

// body(row, first token, tokens, begin, end) for each row of the step that has tokens, and a
// thread's channels [begin, end).
template <class Body>
void for_rows(const Exec& exec, const Step& step, StateLayer& layer, const Body& body) {
  const int64_t channels = layer.spec().conv_channels;
  exec.threads.parallel_for(channels, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int32_t b = 0; b < step.batch; ++b) {
      if (step.q_len(b) > 0) body(layer.row(step, b), step.q_start[b], step.q_len(b), begin, end);
    }
  });
}

}  // namespace

void causal_conv(const Exec& exec, const Step& step, StateLayer& layer, const CausalConv& args) {
  const int64_t window = layer.spec().conv_kernel, taps = args.taps;
  const auto body = [&](const StateLayer::Row& row, int64_t first, int64_t tokens, int64_t begin,
                        int64_t end) {
    // Input `at` of the step, or of the window before it when negative.
    const auto input = [&](int64_t channel, int64_t at) {
      return at >= 0 ? row_of(args.x, first + at)[channel]
                     : row.conv_before[channel * window + window + at];
    };
    for (int64_t t = 0; t < tokens; ++t) {
      float* out = row_of(args.out, first + t);
      for (int64_t channel = begin; channel < end; ++channel) {
        float sum = 0;
        for (int64_t k = 0; k < taps; ++k)
          sum += args.weight[channel * taps + k] * input(channel, t - taps + 1 + k);
        if (args.bias) sum += args.bias[channel];
        out[channel] = args.silu ? sum * sigmoid(sum) : sum;
      }
    }
    for (int64_t channel = begin; channel < end; ++channel) {
      for (int64_t i = 0; i < window; ++i)
        row.conv[channel * window + i] = input(channel, tokens - window + i);
    }
  };
  for_rows(exec, step, layer, body);
}

void selective_scan(const Exec& exec, const Step& step, StateLayer& layer,
                    const SelectiveScan& args) {
  const int64_t states = args.b.shape[1];
  const auto body = [&](const StateLayer::Row& row, int64_t first, int64_t tokens, int64_t begin,
                        int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* before = t == 0 ? row.state_before : row.state;
      const float *b = row_of(args.b, first + t), *c = row_of(args.c, first + t);
      for (int64_t channel = begin; channel < end; ++channel) {
        const float u = row_of(args.u, first + t)[channel];
        const float d = softplus(row_of(args.dt, first + t)[channel]);
        float sum = 0;
        for (int64_t n = 0; n < states; ++n) {
          const int64_t at = channel * states + n;
          row.state[at] = std::exp(d * args.a[at]) * before[at] + d * b[n] * u;
          sum += row.state[at] * c[n];
        }
        row_of(args.y, first + t)[channel] = sum + args.skip[channel] * u;
      }
    }
  };
  for_rows(exec, step, layer, body);
}

void gated_lru(const Exec& exec, const Step& step, StateLayer& layer, const GatedLru& args) {
  const auto body = [&](const StateLayer::Row& row, int64_t first, int64_t tokens, int64_t begin,
                        int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* before = t == 0 ? row.state_before : row.state;
      const bool start = step.position[first + t] == 0;
      for (int64_t channel = begin; channel < end; ++channel) {
        const float decay = sigmoid(row_of(args.decay_gate, first + t)[channel]);
        const float log_a = -8 * decay * args.rate[channel];
        const float root = start ? 1 : std::sqrt(1 - std::exp(2 * log_a));
        const float x = row_of(args.x, first + t)[channel] *
                        sigmoid(row_of(args.input_gate, first + t)[channel]) * root;
        row.state[channel] = std::exp(log_a) * before[channel] + x;
        row_of(args.y, first + t)[channel] = row.state[channel];
      }
    }
  };
  for_rows(exec, step, layer, body);
}

}  // namespace larder
