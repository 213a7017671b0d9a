// What a GGUF file says of rope, as config.json says it.
#pragma once

#include "larder/base/json.h"
#include "tools/gguf.h"

namespace larder::tools {

// GGUF keeps its numbers as f32: the shortest decimal that reads back as the same f32 (1e-05 for
// 9.99999975e-06).
double shortest(double value);

// Adds rope_theta, and rope_scaling for the types linear, yarn and llama3 (which GGUF holds as the
// tensor rope_freqs.weight: its parameters are recovered, or the file is refused). Throws Error for
// a scaling that config.json cannot say.
void add_rope(const GgufFile& file, int64_t head_dim, Json& config);

}  // namespace larder::tools
