// larder bench --batched: sequences at once over an engine, in llama-batched-bench's terms.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/engine_flags.h"
#include "tools/model_flags.h"

namespace larder::tools {

struct BatchedBench {
  EngineFlags engine;
  std::vector<int64_t> sequences = {1, 4, 8, 16, 32};
  int64_t shared_prefix = 0;  // prompt tokens that all sequences of a run begin with
  int64_t repetitions = 1;
  bool json = false;  // a JSON object a line instead of a table
};

// Every n_gen after every n_prompt, with every number of sequences. Gives the exit code.
int run_batched(const BatchedBench& bench, const ModelFlags& model,
                const std::vector<int64_t>& n_prompt, const std::vector<int64_t>& n_gen);

}  // namespace larder::tools
