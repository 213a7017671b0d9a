#include "tests/support/quantized_conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/quantized_layer.h"
#include "larder/cache/registry.h"
#include "tests/support/kv_decode.h"
#include "tests/support/machine.h"
#include "tests/support/quantizer_conformance.h"

namespace larder::test {
namespace {

std::vector<float> as_floats(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.count()));
  copy_into(TensorView::contiguous(values.data(), DType::kF32, view.shape), view);
  return values;
}

class Runner {
 public:
  Runner(const ConformanceCase& test, Comparison& result)
      : test_(test), result_(result), cache_(make()) {}

  void run() {
    for (const Json& op : test_.json().at("ops")) {
      if (op.at("op") != "update") fail("a QuantizedCache case with ", op.at("op").dump());
      where_ = str("op ", number_++);
      update(op);
      for (const Json& state : op.at("state")) check_state(state);
    }
  }

 private:
  Cache make() {
    const Json& json = test_.json();
    int32_t layers = 1;
    for (const Json& op : json.at("ops"))
      layers = std::max(layers, op.at("layer").get<int32_t>() + 1);
    const TensorView keys = test_.tensor(json.at("ops").at(0).at("keys"));
    spec_.num_kv_heads = static_cast<int32_t>(keys.shape[1]);
    spec_.head_dim = static_cast<int32_t>(keys.shape[3]);
    dtype_ = keys.dtype;
    Json config = json.at("quantized_config");
    config["backend"] = json.at("backend");
    CacheOptions options;
    options.dtype = dtype_;
    options.config = config.dump();
    const std::vector<LayerSpec> specs(static_cast<size_t>(layers), spec_);
    return CacheRegistry().make("quantized", specs, options, machine_.host);
  }

  // The elements [heads, tokens, head_dim] of row `row`, token after token, as a step wants them.
  static void pack(const TensorView& from, int64_t row, std::vector<float>& to) {
    const std::vector<float> all = as_floats(from);
    const int64_t heads = from.shape[1], n = from.shape[2], dim = from.shape[3];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < dim; ++d)
          to.push_back(all[static_cast<size_t>(((row * heads + h) * n + i) * dim + d)]);
  }

  void update(const Json& op) {
    const TensorView keys = test_.tensor(op.at("keys")), values = test_.tensor(op.at("values"));
    const auto batch = static_cast<int32_t>(keys.shape[0]), n = static_cast<int32_t>(keys.shape[2]);
    const int32_t layer = op.at("layer");
    std::vector<float> k, v;
    std::vector<int32_t> q_start{0}, slot;
    std::vector<int64_t> position;
    for (int32_t row = 0; row < batch; ++row) {
      pack(keys, row, k);
      pack(values, row, v);
      for (int32_t i = 0; i < n; ++i) position.push_back(cache_.layer(layer).seq_len(row) + i);
      slot.push_back(row);
      q_start.push_back((row + 1) * n);
    }
    const Step step{batch, batch * n, q_start.data(), position.data(), slot.data(), false};
    const Shape shape{int64_t{batch} * n, spec_.num_kv_heads, spec_.head_dim};
    KVLayer& target = cache_.kv(layer);
    target.reserve(step);
    const KVView view =
        target.append(machine_.exec, TensorView::contiguous(k.data(), DType::kF32, shape),
                      TensorView::contiguous(v.data(), DType::kF32, shape), step);
    check_returned(view, Side::kKeys, test_.tensor(op.at("returns").at("keys")), flips_[layer][0]);
    check_returned(view, Side::kValues, test_.tensor(op.at("returns").at("values")),
                   flips_[layer][1]);
    target.commit(step);
  }

  // Values agree where the codes do; one that flipped is a step away.
  void check_returned(const KVView& view, Side side, const TensorView& expected_view,
                      const std::vector<bool>& agree) {
    const std::vector<float> expected = as_floats(expected_view);
    std::vector<float> got;
    for (int32_t row = 0; row < static_cast<int32_t>(expected_view.shape[0]); ++row) {
      const std::vector<float> part = decode_view(view, row, side);
      got.insert(got.end(), part.begin(), part.end());
    }
    compare(side == Side::kKeys ? "returned keys" : "returned values", got, expected, expected_view,
            agree);
  }

  // `agree`: of the quantized tokens of each row and head; the tokens behind them always do.
  void compare(const char* what, const std::vector<float>& got, const std::vector<float>& expected,
               const TensorView& shape, const std::vector<bool>& agree) {
    if (got.size() != expected.size())
      return result_.note(
          str(where_, ": ", what, ": ", got.size(), " values, expected ", expected.size()));
    float most = 0;
    for (const float value : expected) most = std::max(most, std::fabs(value));
    const double allowed = relative_tolerance(dtype_) * static_cast<double>(most);
    const int64_t dim = shape.shape[3], tokens = shape.shape[2];
    const int64_t runs = shape.shape[0] * shape.shape[1];
    const int64_t coded = static_cast<int64_t>(agree.size()) / runs / dim;
    for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
      const int64_t token = i / dim % tokens, run = i / dim / tokens;
      if (token < coded && !agree[static_cast<size_t>((run * coded + token) * dim + i % dim)])
        continue;
      const auto at = static_cast<size_t>(i);
      const double off =
          std::fabs(static_cast<double>(got[at]) - static_cast<double>(expected[at]));
      if (!(off <= allowed))
        return result_.note(str(where_, ": ", what, " ", i, ": ", got[at], ", expected ",
                                expected[at], ", allowed ", allowed));
    }
  }

  void check_state(const Json& state) {
    const int32_t layer_index = state.at("layer");
    const auto& layer = dynamic_cast<const QuantizedLayer&>(cache_.layer(layer_index));
    if (layer.seq_len(0) != state.at("seq_length"))
      result_.note(str(where_, ": seq_length ", layer.seq_len(0), ", expected ",
                       state.at("seq_length").dump()));
    for (int which = 0; which < 2; ++which) {
      const char* side = which == 0 ? "keys" : "values";
      check_residual(layer, which, state.contains(side) ? &state.at(side) : nullptr);
      check_codes_of(layer, which, state.at("quantized").at(side),
                     flips_[layer_index][static_cast<size_t>(which)]);
    }
  }

  void check_residual(const QuantizedLayer& layer, int which, const Json* name) {
    std::vector<float> got;
    for (int32_t row = 0; row < layer.batch(); ++row) {
      const QuantRow& kept = layer.row_at(row);
      std::vector<float> token(static_cast<size_t>(spec_.head_dim));
      for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
        for (int64_t i = kept.quantized; i < kept.len(); ++i) {
          kept.load(layer.layout(), which, i, head, token.data());
          got.insert(got.end(), token.begin(), token.end());
        }
      }
    }
    const std::vector<float> expected =
        name ? as_floats(test_.tensor(name->get<std::string>())) : std::vector<float>{};
    if (got != expected)
      result_.note(str(where_, ": the residual of side ", which, " differs (", got.size(), " and ",
                       expected.size(), " values)"));
  }

  // The codes and the values of a row's quantized tokens, [heads, tokens, head_dim].
  struct RowContent {
    std::vector<uint8_t> codes;
    std::vector<float> values;
  };
  static RowContent content_of(const QuantizedLayer& layer, const QuantRow& row, int which) {
    const QuantLayout& layout = layer.layout();
    const auto n = static_cast<size_t>(layout.elements(row.quantized));
    RowContent content{std::vector<uint8_t>(n), std::vector<float>(n)};
    for (int32_t head = 0; head < layout.heads; ++head) {
      for (int64_t t = 0; t < row.quantized; ++t) {
        const auto at = static_cast<size_t>((head * row.quantized + t) * layout.head_dim);
        row.load(layout, which, t, head, &content.values[at]);
        unpack_codes(row.codes_at(layout, which, t, head), layout.head_dim,
                     layout.side(which).quantizer.bits, &content.codes[at]);
      }
    }
    return content;
  }

  // Codes of every row, and the values that they and their parameters stand for.
  void check_codes_of(const QuantizedLayer& layer, int which, const Json& names,
                      std::vector<bool>& agree) {
    const Quantizer& q = layer.layout().side(which).quantizer;
    const char* zero_name = q.method == QuantMethod::kQuanto ? "shift" : "zero";
    const std::vector<int64_t> codes = test_.integers(names.at("codes"));
    const std::vector<float> scale = as_floats(test_.tensor(names.at("scale"))),
                             zero = as_floats(test_.tensor(names.at(zero_name)));
    const auto rows = static_cast<size_t>(layer.batch());
    const size_t row_codes = codes.size() / rows, row_groups = scale.size() / rows;
    agree.clear();
    for (size_t row = 0; row < rows; ++row) {
      const QuantRow& kept = layer.row_at(static_cast<int32_t>(row));
      const RowContent got = content_of(layer, kept, which);
      const auto count = static_cast<int64_t>(got.codes.size());
      const std::vector<int64_t> places = grouped_places(q, count, spec_.head_dim);
      const std::span expected_codes(codes.data() + row * row_codes, row_codes);
      const std::vector<bool> same =
          check_codes(str(where_, " row ", row, " side ", which), got.codes, places, expected_codes,
                      flip_tolerance(), result_);
      if (row_codes != got.codes.size()) return;
      const FlatGroups order(q, count, spec_.head_dim);
      std::vector<float> expected;
      for (int64_t i = 0; i < count; ++i) {
        const size_t g = row * row_groups + static_cast<size_t>(order.of(i));
        const int64_t code = expected_codes[static_cast<size_t>(places[static_cast<size_t>(i)])];
        expected.push_back(dequantize(q, static_cast<uint8_t>(code), scale[g], zero[g]));
      }
      TensorView shape;
      shape.shape = {1, spec_.num_kv_heads, kept.quantized, spec_.head_dim};
      compare("dequantized", got.values, expected, shape, same);
      agree.insert(agree.end(), same.begin(), same.end());
    }
  }

  double flip_tolerance() const { return test_.json().at("flip_tolerance"); }

  const ConformanceCase& test_;
  Comparison& result_;
  Machine machine_;
  LayerSpec spec_;
  DType dtype_ = DType::kF32;
  Cache cache_;
  std::map<int32_t, std::array<std::vector<bool>, 2>> flips_;
  std::string where_;
  int number_ = 0;
};

}  // namespace

void check_quantized_cache_case(const ConformanceCase& test, Comparison& result) {
  Runner(test, result).run();
}

}  // namespace larder::test
