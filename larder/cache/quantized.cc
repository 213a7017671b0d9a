// "quantized": the config of transformers' QuantizedCache, with keys and values apart.
#include <algorithm>
#include <array>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/kinds.h"
#include "larder/cache/quantized_layer.h"

namespace larder {
namespace {

constexpr std::array kSettings = {
    "backend",    "nbits",        "nbits_key",        "nbits_value",        "axis_key",
    "axis_value", "q_group_size", "q_group_size_key", "q_group_size_value", "residual_length",
    "append_only"};

int32_t small_integer(const JsonFields& fields, std::string_view key, int32_t absent) {
  const int64_t value = fields.integer(key).value_or(absent);
  if (value < INT32_MIN || value > INT32_MAX)
    fail("cache_config: ", key, " ", value, " is out of range");
  return static_cast<int32_t>(value);
}

Quantizer read_side(const JsonFields& fields, QuantMethod method, const std::string& side) {
  Quantizer q;
  q.method = method;
  q.bits = small_integer(fields, "nbits_" + side, small_integer(fields, "nbits", 4));
  q.axis = small_integer(fields, "axis_" + side, method == QuantMethod::kQuanto ? 0 : 1);
  q.group_size =
      small_integer(fields, "q_group_size_" + side, small_integer(fields, "q_group_size", 64));
  return q;
}

QuantSettings read_settings(const JsonFields& fields, QuantMethod method) {
  QuantSettings settings;
  settings.k = read_side(fields, method, "key");
  settings.v = read_side(fields, method, "value");
  settings.residual_length = fields.integer("residual_length").value_or(128);
  if (settings.residual_length < 0 || settings.residual_length > INT32_MAX) {
    fail("cache_config: residual_length ", settings.residual_length, "; it must be in 0..",
         INT32_MAX);
  }
  settings.append_only = fields.boolean("append_only").value_or(false);
  return settings;
}

QuantMethod read_method(const JsonFields& fields) {
  const std::string backend = fields.string("backend").value_or("quanto");
  if (backend == "quanto") return QuantMethod::kQuanto;
  if (backend == "hqq") return QuantMethod::kHqq;
  fail("cache_config: backend ", in_quotes(backend), "; there are: quanto, hqq, larder");
}

}  // namespace

CacheLayers make_quantized_layers(std::span<const LayerSpec> specs, const CacheOptions& options,
                                  const CacheMemory& memory) {
  const Json config =
      options.config.empty() ? Json::object() : parse_json(options.config, "cache_config");
  const JsonFields fields(config, "cache_config");
  if (fields.string("backend") == "larder")
    return make_larder_quantized_layers(specs, options, memory);
  const QuantMethod method = read_method(fields);
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(kSettings, key) == kSettings.end()) {
      fail("cache_config: the cache \"quantized\" has no setting ", in_quotes(key),
           "; there are: ", join(kSettings, ", "));
    }
  }
  const QuantSettings settings = read_settings(fields, method);
  const auto scratch = std::make_shared<FlushScratch>(memory.allocator);
  CacheLayers layers;
  for (const LayerSpec& spec : specs) {
    layers.push_back(
        std::make_unique<QuantizedLayer>(spec, options.dtype, settings, memory.blocks, scratch));
  }
  return layers;
}

}  // namespace larder
