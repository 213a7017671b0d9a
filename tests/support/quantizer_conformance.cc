#include "tests/support/quantizer_conformance.h"

#include <algorithm>
#include <cmath>

#include "larder/base/error.h"

namespace larder::test {
namespace {

std::vector<float> floats(const ConformanceCase& test, const std::string& name) {
  const TensorView view = test.tensor(name);
  std::vector<float> values(static_cast<size_t>(view.count()));
  copy_into(TensorView::contiguous(values.data(), DType::kF32, view.shape), view);
  return values;
}

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scale, zero;
};

Quantized run(const Quantizer& quantizer, const std::vector<float>& x, int64_t last_dim) {
  const auto count = static_cast<int64_t>(x.size());
  const auto groups = static_cast<size_t>(FlatGroups(quantizer, count, last_dim).groups);
  Quantized got{std::vector<uint8_t>(x.size()), std::vector<float>(groups),
                std::vector<float>(groups)};
  quantize(quantizer, x.data(), count, last_dim, got.codes.data(), got.scale.data(),
           got.zero.data());
  return got;
}

}  // namespace

std::vector<int64_t> grouped_places(const Quantizer& quantizer, int64_t count, int64_t last_dim) {
  std::vector<int64_t> places(static_cast<size_t>(count));
  const int64_t per_channel = count / last_dim / quantizer.group_size;
  for (int64_t e = 0; e < count; ++e) {
    int64_t place = e;
    if (quantizer.order() == KVOrder::kFlatChannels) {
      const int64_t channel = e % last_dim, row = e / last_dim;
      place = row % quantizer.group_size * (last_dim * per_channel) + channel * per_channel +
              row / quantizer.group_size;
    }
    places[static_cast<size_t>(e)] = place;
  }
  return places;
}

std::vector<bool> check_codes(const std::string& what, std::span<const uint8_t> codes,
                              std::span<const int64_t> places, std::span<const int64_t> expected,
                              double flip_tolerance, Comparison& result) {
  std::vector<bool> agree(codes.size());
  if (codes.size() != expected.size()) {
    result.note(str(what, ": ", codes.size(), " codes, expected ", expected.size()));
    return agree;
  }
  size_t flips = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const int64_t off = int64_t{codes[i]} - expected[static_cast<size_t>(places[i])];
    agree[i] = off == 0;
    flips += off != 0 ? 1 : 0;
    if (off < -1 || off > 1) {
      result.note(str(what, ": code of element ", i, " is ", int64_t{codes[i]}, ", expected ",
                      expected[static_cast<size_t>(places[i])]));
      return agree;
    }
  }
  if (static_cast<double>(flips) > flip_tolerance * static_cast<double>(codes.size()))
    result.note(str(what, ": ", flips, " of ", codes.size(), " codes are off by one"));
  return agree;
}

double relative_tolerance(DType dtype) {
  if (dtype == DType::kF32) return 1e-3;
  return dtype == DType::kF16 ? 4e-3 : 3e-2;
}

void check_quantizer_case(const ConformanceCase& test, Comparison& result) {
  const Json& json = test.json();
  const Json& names = json.at("tensors");
  const TensorView input = test.tensor(names.at("input"));
  const bool quanto = json.at("backend") == "quanto";
  const Quantizer quantizer{quanto ? QuantMethod::kQuanto : QuantMethod::kHqq, json.at("nbits"),
                            json.at("axis"), json.at("group_size"),
                            dtype_from_name(json.at("dtype").get<std::string>()).value()};
  check_quantizer(quantizer, "the case");
  const int64_t last_dim = input.shape[input.shape.rank() - 1];
  const Quantized got = run(quantizer, floats(test, names.at("input")), last_dim);
  const std::vector<bool> agree =
      check_codes("codes", got.codes, grouped_places(quantizer, input.count(), last_dim),
                  test.integers(names.at("codes")), json.at("flip_tolerance"), result);
  // Exact for quanto. hqq's rounds sum in another order; there the zero point moves with them.
  const std::vector<float> scale = floats(test, names.at("scale")),
                           zero = floats(test, names.at(quanto ? "shift" : "zero")),
                           values = floats(test, names.at("dequantized"));
  const FlatGroups groups(quantizer, input.count(), last_dim);
  float most = 0;
  for (const float value : values) most = std::max(most, std::fabs(value));
  const double allowed = quanto ? 0 : relative_tolerance(quantizer.dtype) * most;
  for (size_t i = 0; i < got.codes.size(); ++i) {
    const auto g = static_cast<size_t>(groups.of(static_cast<int64_t>(i)));
    if (got.scale[g] != scale[g])
      return result.note(str("scale of group ", g, ": ", got.scale[g], ", expected ", scale[g]));
    if (quanto && got.zero[g] != zero[g])
      return result.note(str("shift of group ", g, ": ", got.zero[g], ", expected ", zero[g]));
    if (!agree[i]) continue;
    const float value = dequantize(quantizer, got.codes[i], got.scale[g], got.zero[g]);
    const double off = std::fabs(static_cast<double>(value) - static_cast<double>(values[i]));
    if (!(off <= allowed))
      return result.note(str("value of element ", i, ": ", value, ", expected ", values[i]));
  }
}

}  // namespace larder::test
