#include "tools/gguf_rope.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

#include "larder/base/error.h"
#include "tools/gguf_weights.h"

namespace larder::tools {
namespace {

double positive(const GgufFile& file, std::string_view key, std::optional<double> absent) {
  const std::optional<double> value = file.number(key);
  if (!value && !absent) fail(file.name(), ": metadata ", in_quotes(key), " is missing");
  const double result = value ? shortest(*value) : *absent;
  if (!(result > 0)) fail(file.name(), ": metadata ", in_quotes(key), " is ", result);
  return result;
}

// What llama3's rule multiplies a wavelength by, as arXiv 2407.21783's published configurations
// give it: short waves stay, long ones are stretched by `factor`, with a smooth step between.
double llama3_stretch(double wavelength, double factor, double low, double high, double original) {
  if (wavelength < original / high) return 1;
  if (wavelength > original / low) return factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

// The parameters that every published llama3 configuration shares but for the factor.
constexpr double kLow = 1, kHigh = 4, kOriginal = 8192;

Json llama3_scaling(const GgufFile& file, const GgufTensor& tensor, int64_t head_dim,
                    double theta) {
  const int64_t half = head_dim / 2;
  if (tensor.shape != std::vector<int64_t>{half} || tensor.type != GgufType::kF32)
    fail(file.name(), ": rope_freqs.weight must be ", half, " numbers of type F32");
  std::vector<float> found(static_cast<size_t>(half));
  dequantize_row(tensor, 0, found);
  const double factor = static_cast<double>(*std::ranges::max_element(found));
  bool same = factor >= 1 && std::isfinite(factor);
  for (int64_t i = 0; i < half && same; ++i) {
    const double exponent = 2 * static_cast<double>(i) / static_cast<double>(head_dim);
    const double wavelength = 2 * std::numbers::pi * std::pow(theta, exponent);
    const double expected = llama3_stretch(wavelength, factor, kLow, kHigh, kOriginal);
    const auto value = static_cast<double>(found[static_cast<size_t>(i)]);
    same = std::abs(value - expected) <= 1e-3 * expected;
  }
  if (!same) {
    fail_as(ErrorKind::kUnsupported, file.name(),
            ": rope_freqs.weight is not the llama3 scaling that could be written to config.json");
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLow},
          {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", static_cast<int64_t>(kOriginal)}};
}

Json scaling_by_key(const GgufFile& file) {
  const std::string type = file.string("llama.rope.scaling.type").value_or("none");
  const double old_linear = positive(file, "llama.rope.scale_linear", 1);
  if (type == "none" && old_linear == 1) return nullptr;
  if (type == "linear" || type == "none") {
    return {{"rope_type", "linear"},
            {"factor", positive(file, "llama.rope.scaling.factor", old_linear)}};
  }
  if (type != "yarn") {
    fail_as(ErrorKind::kUnsupported, file.name(), ": rope scaling of type ", in_quotes(type),
            " is not supported (none, linear, yarn)");
  }
  Json yarn = {{"rope_type", "yarn"}, {"factor", positive(file, "llama.rope.scaling.factor", {})}};
  constexpr std::string_view kOriginalKey = "llama.rope.scaling.original_context_length";
  if (const auto original = file.integer(kOriginalKey)) {
    if (*original < 1) fail(file.name(), ": metadata ", in_quotes(kOriginalKey), " is ", *original);
    yarn["original_max_position_embeddings"] = *original;
  }
  return yarn;
}

}  // namespace

double shortest(double value) {
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) != value) return value;
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, single).ptr;
  std::from_chars(digits, end, value);
  return value;
}

void add_rope(const GgufFile& file, int64_t head_dim, Json& config) {
  const double theta = positive(file, "llama.rope.freq_base", 10000);
  config["rope_theta"] = theta;
  Json scaling = scaling_by_key(file);
  if (const GgufTensor* freqs = file.find("rope_freqs.weight")) {
    if (!scaling.is_null()) {
      fail_as(ErrorKind::kUnsupported, file.name(),
              ": rope_freqs.weight beside another rope scaling is not supported");
    }
    scaling = llama3_scaling(file, *freqs, head_dim, theta);
  }
  config["rope_scaling"] = std::move(scaling);
}

}  // namespace larder::tools
