#include "larder/generate/kv_quality.h"

#include <cmath>

#include "larder/cache/rows.h"
#include "larder/generate/quality_race.h"

namespace larder {
namespace {

FormatQuality summary(const QualityRace& race, const Contender& contender,
                      const CacheFormat& format) {
  return {race.divergence(contender),
          format,
          static_cast<double>(contender.memory.of("kv").live) / static_cast<double>(race.tokens()),
          {}};
}

double relative_error(const TensorView& exact, const TensorView& rounded, int32_t head) {
  const int64_t count = exact.shape[1] * exact.shape[2];
  const float* a = exact.as<float>() + head * count;
  const float* b = rounded.as<float>() + head * count;
  double error = 0, total = 0;
  for (int64_t i = 0; i < count; ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    total += double{a[i]} * a[i];
  }
  return total > 0 ? std::sqrt(error / total) : 0;
}

// Converts what the exact cache holds to the format, layer by layer, and looks at the difference.
std::vector<HeadError> head_errors(Session& exact, const Model& model, const CacheFormat& format,
                                   Allocator& allocator) {
  std::vector<HeadError> errors;
  const std::vector<LayerSpec> specs = model.cache_layers();
  Cache converted = CacheRegistry().make(
      format.cache, specs, {DType::kF32, exact.cache().seq_len(0), 0, format.config}, allocator);
  for (int32_t i = 0; i < exact.cache().num_layers(); ++i) {
    if (exact.cache().layer(i).as_kv() == nullptr) continue;
    const KVLayer& from = exact.cache().kv(i);
    KVLayer& to = converted.kv(i);
    const LayerSpec& spec = from.spec();
    const TokenTensors exact_tokens = read_tokens(from, 0, allocator, "export");
    const int64_t kept = from.kept_len(0);
    const RowTokens row{from.seq_len(0) - kept, exact_tokens.k, exact_tokens.v};
    to.assign(std::span(&row, 1))->apply();
    const TokenTensors left = read_tokens(to, 0, allocator, "export");
    const auto same = [&](const Tensor& side) {
      Tensor tensor(allocator, left.k.view().shape, DType::kF32, "export");
      copy_into(tensor, side.view().slice(1, kept - to.kept_len(0), kept));
      return tensor;
    };
    const Tensor k = same(exact_tokens.k), v = same(exact_tokens.v);
    for (int32_t head = 0; head < spec.num_kv_heads; ++head)
      errors.push_back({i, head, relative_error(k, left.k, head), relative_error(v, left.v, head)});
  }
  return errors;
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
  if (!race.run()) return {};

  KVQuality result{total, summary(race, race.exact(), plain), {}};
  for (size_t f = 0; f < formats.size(); ++f) {
    result.formats.push_back(summary(race, race.other(f), formats[f]));
    if (quality.per_head)
      result.formats.back().heads =
          head_errors(race.exact().session, *model, formats[f], allocator);
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
