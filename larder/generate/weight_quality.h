// What a weight format costs in quality: next-token distributions with it, beside those of the
// weights as they are stored.
#pragma once

#include <filesystem>
#include <vector>

#include "larder/generate/kv_quality.h"

namespace larder {

struct WeightQuality : Divergence {
  WeightFormat format = WeightFormat::kStored;
  double bits_per_weight = 0;  // of all that loading takes, scales and norms too
};

struct WeightQualities {
  int64_t tokens = 0;   // 0 when interrupted
  WeightQuality exact;  // the stored weights themselves
  std::vector<WeightQuality> formats;
};

// Loads `exact` again from its folder in each format, with `load`'s other settings, and feeds `ids`
// to all in the same steps over dynamic f32 caches. `options` gives attention, kernels and threads.
// Throws Error for fewer than two ids.
WeightQualities measure_weight_quality(const std::shared_ptr<const Model>& exact,
                                       const std::filesystem::path& folder, const LoadOptions& load,
                                       const SessionOptions& options, std::span<const int32_t> ids,
                                       std::span<const WeightFormat> formats,
                                       const QualitySteps& steps, Allocator& allocator);

}  // namespace larder
