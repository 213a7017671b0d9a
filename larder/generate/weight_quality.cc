#include "larder/generate/weight_quality.h"

#include "larder/generate/quality_race.h"

namespace larder {
namespace {

WeightQuality summary(const QualityRace& race, const Contender& contender, WeightFormat format) {
  const ModelInfo& info = contender.session.model().info();
  const auto bytes = static_cast<double>(info.mapped_weight_bytes + info.converted_weight_bytes);
  return {race.divergence(contender), format, 8 * bytes / static_cast<double>(info.num_parameters)};
}

}  // namespace

WeightQualities measure_weight_quality(const std::shared_ptr<const Model>& exact,
                                       const std::filesystem::path& folder, const LoadOptions& load,
                                       const SessionOptions& options, std::span<const int32_t> ids,
                                       std::span<const WeightFormat> formats,
                                       const QualitySteps& steps, Allocator& allocator) {
  check_race(*exact, ids, steps);
  SessionOptions plain = options;
  plain.cache_implementation = "dynamic";
  plain.cache_config.clear();
  plain.cache_dtype = DType::kF32;
  QualityRace race(ids, steps, std::make_unique<Contender>(exact, plain, allocator));
  for (const WeightFormat format : formats) {
    LoadOptions own = load;
    own.weights = format;
    race.add(std::make_unique<Contender>(Model::load(folder, own, allocator), plain, allocator));
  }
  if (!race.run()) return {};
  WeightQualities result{race.tokens(), summary(race, race.exact(), WeightFormat::kStored), {}};
  for (size_t f = 0; f < formats.size(); ++f)
    result.formats.push_back(summary(race, race.other(f), formats[f]));
  return result;
}

}  // namespace larder
