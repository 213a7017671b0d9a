// What the working memory of a forward needs, from config.json alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "larder/base/json_fwd.h"
#include "larder/tensor/coded_matrix.h"

namespace larder {

struct ScratchLoad {
  int64_t batch = 1, tokens = 0;  // rows, and the tokens that each comes to have
  int threads = 1;
  WeightFormat weights = WeightFormat::kStored;
};

// A bound of what the arena holds in steps of at most 512 tokens (or one of every row, where that
// is more) with fused attention, whatever the kernel set of this machine and the dtype.
// Encoder-decoder models: for sources of at most 512 tokens. For an architecture that larder cannot
// run: what the generic decoder would take, and nullopt where the config lacks its sizes.
std::optional<int64_t> planned_scratch_bytes(const Json& config, const std::string& what,
                                             const ScratchLoad& load);

}  // namespace larder
