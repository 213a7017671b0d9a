// larder verify --weights: weight formats beside the weights as they are stored.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "larder/generate/weight_quality.h"
#include "tools/model_flags.h"

namespace larder::tools {

class WeightComparison {
 public:
  // Throws Error for flags that make no sense.
  WeightComparison(const ModelFlags& flags, bool json);
  // For the model that the formats are compared with.
  const ModelFlags& exact_flags() const { return exact_; }
  // Prints the comparison; gives the exit code.
  int run(LoadedModel& exact, std::span<const int32_t> ids, const QualitySteps& steps) const;

 private:
  ModelFlags exact_;
  std::vector<WeightFormat> formats_;
  bool json_;
};

// Filled up with blanks.
std::string padded(const std::string& text, size_t width);
// Three significant digits: KL spans many powers of ten.
std::string brief(double value);

}  // namespace larder::tools
