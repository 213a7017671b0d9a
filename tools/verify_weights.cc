#include "tools/verify_weights.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "larder/base/json.h"
#include "tools/interrupt.h"
#include "tools/numbers.h"

namespace larder::tools {
namespace {

Json json_of(const WeightQuality& quality) {
  return {{"format", weight_format_name(quality.format)},
          {"bits_per_weight", quality.bits_per_weight},
          {"mean_kl", quality.mean_kl},
          {"max_kl", quality.max_kl},
          {"same_top", quality.same_top},
          {"perplexity", quality.perplexity}};
}

void print_row(const WeightQuality& quality) {
  std::cout << padded(std::string(weight_format_name(quality.format)), 8)
            << padded(fixed(quality.bits_per_weight, 2), 17) << padded(brief(quality.mean_kl), 13)
            << padded(brief(quality.max_kl), 11) << padded(fixed(quality.same_top, 4), 10)
            << fixed(quality.perplexity, 4) << '\n';
}

}  // namespace

std::string padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : text + std::string(width - text.size(), ' ');
}

// Three significant digits: KL spans many powers of ten.
std::string brief(double value) {
  if (value == 0) return "0";
  const int digits = 2 - static_cast<int>(std::floor(std::log10(std::fabs(value))));
  return fixed(value, std::clamp(digits, 0, 12));
}

WeightComparison::WeightComparison(const ModelFlags& flags, bool json)
    : exact_(flags), json_(json) {
  const WeightFormat only = parse_weight_format(flags.weights);
  if (only == WeightFormat::kStored)
    formats_ = {WeightFormat::kInt8, WeightFormat::kInt4};
  else
    formats_ = {only};
  exact_.weights = "stored";
  if (exact_.dtype.empty()) exact_.dtype = "bf16";
}

int WeightComparison::run(LoadedModel& exact, std::span<const int32_t> ids,
                          const QualitySteps& steps) const {
  const WeightQualities result =
      measure_weight_quality(exact.model(), exact_.model, exact.load_options(), exact.options(),
                             ids, formats_, steps, exact.allocator());
  if (result.tokens == 0) return kInterrupted;
  if (json_) {
    Json formats = Json::array();
    for (const WeightQuality& quality : result.formats) formats.push_back(json_of(quality));
    const Json report = {{"tokens", result.tokens},
                         {"dtype", dtype_name(exact.model()->dtype())},
                         {"exact", json_of(result.exact)},
                         {"formats", formats}};
    std::cout << report.dump(2) << std::endl;
    return 0;
  }
  std::cout << result.tokens << " tokens, computed in " << dtype_name(exact.model()->dtype())
            << "; stored weights: perplexity " << fixed(result.exact.perplexity, 4) << ", "
            << fixed(result.exact.bits_per_weight, 2) << " bits a weight\n"
            << padded("format", 8) << padded("bits_per_weight", 17) << padded("mean_kl", 13)
            << padded("max_kl", 11) << padded("same_top", 10) << "perplexity\n";
  for (const WeightQuality& quality : result.formats) print_row(quality);
  std::cout << std::flush;
  return 0;
}

}  // namespace larder::tools
