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
    const Shape shape{batch * n, spec_.num_kv_heads, spec_.head_dim};
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
      check_codes_of(layer, which, state.at("quantized").at(side), flips_[layer_index][which]);
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

  // Codes of every row, and the values that they and their parameters stand for.
  void check_codes_of(const QuantizedLayer& layer, int which, const Json& names,
                      std::vector<bool>& agree) {
    const QuantSideLayout& side = layer.layout().side(which);
    const Quantizer& q = side.quantizer;
    const bool quanto = q.method == QuantMethod::kQuanto;
    const std::vector<int64_t> codes = test_.integers(names.at("codes"));
    const std::vector<float> scale = as_floats(test_.tensor(names.at("scale"))),
                             zero = as_floats(test_.tensor(names.at(quanto ? "shift" : "zero")));
    const auto rows = static_cast<size_t>(layer.batch());
    agree.clear();
    for (size_t row = 0; row < rows; ++row) {
      const QuantRow& kept = layer.row_at(static_cast<int32_t>(row));
      const int64_t count = layer.layout().elements(kept.quantized);
      const auto n = static_cast<size_t>(count), groups = scale.size() / rows;
      const std::span row_codes(codes.data() + row * (codes.size() / rows), codes.size() / rows);
      const std::vector<int64_t> places = grouped_places(q, count, spec_.head_dim);
      std::vector<uint8_t> got(n);
      std::vector<float> values(n), expected(n);
      std::vector<float> token(static_cast<size_t>(spec_.head_dim));
      for (int64_t at = 0; at < count; at += spec_.head_dim) {
        const int64_t head = at / spec_.head_dim / kept.quantized;
        const int64_t index = at / spec_.head_dim % kept.quantized;
        kept.load(layer.layout(), which, index, static_cast<int32_t>(head), token.data());
        std::copy(token.begin(), token.end(), values.begin() + at);
        const QuantLayout& layout = layer.layout();
        const auto* packed = reinterpret_cast<const uint8_t*>(
            kept.codes[static_cast<size_t>(index / layout.block_size)]->data() + side.codes_at +
            head * side.head_stride + index % layout.block_size * side.code_bytes);
        unpack_codes(packed, spec_.head_dim, q.bits, got.data() + at);
      }
      const std::vector<bool> row_agree =
          check_codes(str(where_, " row ", row, " side ", which), got, places, row_codes,
                      flip_tolerance(), result_);
      if (row_codes.size() != n) return;
      const FlatGroups order(q, count, spec_.head_dim);
      for (size_t i = 0; i < n; ++i) {
        const size_t g = row * groups + static_cast<size_t>(order.of(static_cast<int64_t>(i)));
        expected[i] = dequantize(q, static_cast<uint8_t>(row_codes[static_cast<size_t>(places[i])]),
                                 scale[g], zero[g]);
      }
      TensorView shape;
      shape.shape = {1, spec_.num_kv_heads, kept.quantized, spec_.head_dim};
      compare("dequantized", values, expected, shape, row_agree);
      agree.insert(agree.end(), row_agree.begin(), row_agree.end());
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
