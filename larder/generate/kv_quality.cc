#include "larder/generate/kv_quality.h"

#include "larder/generate/head_errors.h"
#include "larder/generate/quality_race.h"

namespace larder {
namespace {

constexpr int64_t kWatchedTokens = 64;  // at the text's end, whose queries are kept

FormatQuality summary(const QualityRace& race, const Contender& contender,
                      const CacheFormat& format) {
  return {race.divergence(contender),
          format,
          static_cast<double>(contender.memory.of("kv").live) / static_cast<double>(race.tokens()),
          {}};
}

}  // namespace

KVQuality measure_kv_quality(const std::shared_ptr<const Model>& model,
                             const SessionOptions& options, std::span<const int32_t> ids,
                             std::span<const CacheFormat> formats, const KVQualityOptions& quality,
                             Allocator& allocator) {
  check_race(*model, ids, quality.steps);
  const auto total = static_cast<int64_t>(ids.size());
  const auto open = [&](const CacheFormat& format, std::optional<DType> dtype) {
    SessionOptions own = options;
    own.cache_implementation = format.cache;
    own.cache_config = format.config;
    own.cache_dtype = dtype;
    own.max_cache_len = total;
    return std::make_unique<Contender>(model, own, allocator);
  };
  const CacheFormat plain{"dynamic", ""};
  QualityRace race(ids, quality.steps, open(plain, DType::kF32));
  for (const CacheFormat& format : formats) race.add(open(format, options.cache_dtype));
  const WatchedKernels queries(race.exact().session.exec().kernels, allocator);
  if (quality.per_head) race.watch(queries, kWatchedTokens);
  if (!race.run()) return {};

  KVQuality result{total, summary(race, race.exact(), plain), {}};
  for (size_t f = 0; f < formats.size(); ++f) {
    result.formats.push_back(summary(race, race.other(f), formats[f]));
    if (quality.per_head)
      result.formats.back().heads =
          head_errors(race.exact().session, queries, formats[f], allocator);
  }
  return result;
}

std::vector<CacheFormat> standard_kv_formats() {
  std::vector<CacheFormat> formats;
  for (const char* config : {
           R"({"backend": "quanto", "nbits": 4})",
           R"({"backend": "quanto", "nbits": 4, "axis_key": -1, "axis_value": -1})",
           R"({"backend": "quanto", "nbits": 2})",
           R"({"backend": "hqq", "nbits": 8})",
           R"({"backend": "hqq", "nbits": 4})",
           R"({"backend": "hqq", "nbits": 2})",
           R"({"backend": "larder", "nbits": 8})",
           R"({"backend": "larder", "nbits_key": 8, "nbits_value": 4})",
           R"({"backend": "larder", "nbits": 4})",
           R"({"backend": "larder", "nbits": 4, "keys_per_channel": false})",
           R"({"backend": "larder", "nbits": 3})",
           R"({"backend": "larder", "nbits": 2})",
       })
    formats.push_back({"quantized", config});
  return formats;
}

}  // namespace larder
