// Rotary position embedding: inverse frequencies of each scaling type, and cos/sin tables of a
// step. Types: default, linear, dynamic (NTK), llama3, yarn (arXiv 2309.00071), as
// transformers 4.57 resolves them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "larder/base/json_fwd.h"

namespace larder {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  int64_t dim = 0;  // rotated channels of a head, even
  double factor = 1;
  int64_t original_max_position_embeddings = 0;      // llama3, yarn, dynamic (its limit)
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn
  double attention_factor = 1;                       // multiplies cos and sin (yarn)
};

// Reads rope_scaling (or rope_parameters) beside rope_theta. The type's name may stand under
// rope_type or type; null, {} and absent mean none; an unknown name, or a missing or senseless
// factor, is refused with what is supported (cases 24).
RopeConfig read_rope_config(const JsonFields& config, int64_t dim, double default_theta,
                            int64_t max_position_embeddings);

// dim / 2 inverse frequencies, in double. `seq_len` matters to the dynamic type only: past its
// limit the base grows with it, and a later short call is back at the unscaled table.
std::vector<double> rope_inv_freq(const RopeConfig& config, int64_t seq_len = 0);

// cos and sin of position * inv_freq, times attention_factor, computed in double from the integer
// position (cases 23). out: [positions, 2, inv_freq.size()].
void rope_cos_sin(std::span<const double> inv_freq, double attention_factor,
                  std::span<const int64_t> positions, float* out);

}  // namespace larder
