#include "tests/support/cache_conformance.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "larder/base/error.h"
#include "larder/cache/mamba_cache.h"
#include "larder/cache/padded_encoder_decoder.h"

namespace larder::test {
namespace {

bool all_zero(const TensorView& view) {
  return std::all_of(view.bytes(), view.bytes() + view.byte_size(),
                     [](std::byte b) { return b == std::byte{0}; });
}

bool has_cross(const Json& json) { return json.at("class") == "EncoderDecoderCache"; }

// The reference's class of the decoder's own layers.
std::string class_of(const Json& json) { return json.at(has_cross(json) ? "inner" : "class"); }

PaddedSide side_of(const Json& json) {
  return json.value("side", "") == "cross" ? PaddedSide::kCross : PaddedSide::kSelf;
}

// The kind that bears the reference's class; empty for one that does not exist here.
std::string kind_of(const std::string& cls) {
  if (cls == "DynamicCache") return "dynamic";
  if (cls == "StaticCache") return "static";
  if (cls == "SlidingWindowCache") return "sliding_window";
  if (cls == "HybridCache") return "hybrid";
  return cls == "HybridChunkedCache" ? "hybrid_chunked" : "";
}

TensorView first_keys(const ConformanceCase& test) {
  for (const Json& op : test.json().at("ops")) {
    if (op.at("op") == "update") return test.tensor(op.at("keys"));
  }
  fail("a cache case without an update");
}

// One spec a layer, as the case's config says: layer_types null with a window: every layer slides.
std::vector<LayerSpec> specs_of(const ConformanceCase& test) {
  const Json& json = test.json();
  int32_t layers = 1;
  for (const Json& op : json.at("ops")) {
    if (op.at("op") == "update") layers = std::max(layers, op.at("layer").get<int32_t>() + 1);
  }
  const TensorView keys = first_keys(test);
  const LayerSpec full{static_cast<int32_t>(keys.shape[1]), static_cast<int32_t>(keys.shape[3])};
  std::vector<LayerSpec> specs(static_cast<size_t>(layers), full);
  const Json& config = json.at("config");
  if (config.is_null()) return specs;
  const auto window = [&](const char* key) {
    return config.at(key).is_null() ? int64_t{0} : config.at(key).get<int64_t>();
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const Json& types = config.at("layer_types");
    if (types.is_null()) {
      specs[i].window = std::max(window("sliding_window"), window("attention_chunk_size"));
    } else if (types.at(i) == "sliding_attention") {
      specs[i].window = window("sliding_window");
    } else if (types.at(i) == "chunked_attention") {
      specs[i].window = window("attention_chunk_size");
    }
  }
  return specs;
}

class Runner {
 public:
  Runner(const ConformanceCase& test, Comparison& result)
      : test_(test),
        result_(result),
        cache_(make(test)),
        edge_(cache_, machine_.exec, machine_.host) {}

  void run() {
    for (const Json& op : test_.json().at("ops")) {
      where_ = str("op ", number_++, " ", op.at("op").get<std::string>());
      if (op.at("op") == "update") {
        update(op);
      } else {
        other(op.at("op"), op.at("argument"));
      }
      for (const Json& state : op.at("state")) check_state(state);
    }
  }

 private:
  static Cache make(const ConformanceCase& test) {
    const Json& json = test.json();
    const CacheKind& kind = registry().find(kind_of(class_of(json)));
    static HostAllocator host;
    const CacheMemory memory{std::make_shared<MemoryBlocks>(host), host};
    const std::vector<LayerSpec> specs = specs_of(test);
    CacheOptions options{first_keys(test).dtype};
    // Both sides are of the same kind here, each with a length of its own.
    const auto layers = [&](const char* side) {
      if (kind.needs_max_cache_len) {
        const Json& length = json.at("max_cache_len");
        options.max_cache_len = (has_cross(json) ? length.at(side) : length).get<int64_t>();
      }
      return kind.make(specs, options, memory);
    };
    auto own = layers("self");
    return has_cross(json) ? Cache(std::move(own), layers("cross")) : Cache(std::move(own));
  }
  static const CacheRegistry& registry() {
    static const CacheRegistry kRegistry;
    return kRegistry;
  }

  void update(const Json& op) {
    const int32_t layer = op.at("layer");
    const TensorView keys = test_.tensor(op.at("keys")), values = test_.tensor(op.at("values"));
    std::optional<int64_t> position;
    if (!op.at("cache_position").is_null()) position = op.at("cache_position").at(0).get<int64_t>();
    const PaddedSide side = side_of(op);
    same("mask_sizes_before", edge_.side(side).get_mask_sizes(keys.shape[2], layer),
         op.at("mask_sizes_before"));
    const KeyValues got = edge_.update(side, layer, keys, values, position);
    same("returned keys", got.keys.view(), op.at("returns").at("keys"));
    same("returned values", got.values.view(), op.at("returns").at("values"));
  }

  void other(const std::string& op, const Json& argument) {
    if (op == "reorder_cache") return edge_.reorder_cache(argument.get<std::vector<int32_t>>());
    if (op == "batch_select_indices")
      return edge_.batch_select_indices(argument.get<std::vector<int32_t>>());
    if (op == "batch_repeat_interleave")
      return edge_.batch_repeat_interleave(argument.get<int64_t>());
    if (op == "crop") return edge_.crop(argument.get<int64_t>());
    if (op == "reset") return edge_.reset();
    fail("unknown cache operation ", op);
  }

  void check_state(const Json& state) {
    const int32_t layer = state.at("layer");
    const PaddedCache& padded = edge_.side(side_of(state));
    const auto number = [&](const char* name, int64_t got, int64_t expected) {
      if (got != expected)
        result_.note(str(where_, ", layer ", layer, ": ", name, " ", got, ", expected ", expected));
    };
    number("seq_length", padded.get_seq_length(layer), state.at("seq_length"));
    number("max_cache_shape", padded.get_max_cache_shape(layer), state.at("max_cache_shape"));
    for (const auto& [q_len, sizes] : state.at("mask_sizes").items()) {
      same("mask_sizes", padded.get_mask_sizes(std::stoll(q_len), layer), sizes);
    }
    const auto held = padded.keys_values(layer);
    for (const char* side : {"keys", "values"}) {
      if (!state.contains(side)) {
        if (held)
          result_.note(
              str(where_, ": layer ", layer, " holds ", side, ", the reference holds none"));
      } else if (!held) {
        // A fixed cache of the reference shows zeros when it is empty.
        if (!all_zero(test_.tensor(state.at(side))))
          result_.note(str(where_, ": layer ", layer, " holds no ", side));
      } else {
        same(side, std::string(side) == "keys" ? held->keys.view() : held->values.view(),
             state.at(side));
      }
    }
  }

  void same(const std::string& what, std::pair<int64_t, int64_t> got, const Json& expected) {
    if (got.first != expected.at(0) || got.second != expected.at(1)) {
      result_.note(str(where_, ": ", what, " [", got.first, ", ", got.second, "], expected ",
                       expected.dump()));
    }
  }

  void same(const std::string& what, const TensorView& got, const std::string& name) {
    const TensorView expected = test_.tensor(name);
    if (!(got.shape == expected.shape) || got.dtype != expected.dtype) {
      return result_.note(
          str(where_, ": ", what, " ", got.shape.text(), ", expected ", expected.shape.text()));
    }
    if (std::memcmp(got.data, expected.data, static_cast<size_t>(got.byte_size())) != 0) {
      result_.note(str(where_, ": ", what, " differ"));
    }
  }

  const ConformanceCase& test_;
  Comparison& result_;
  Machine machine_;
  Cache cache_;
  PaddedEncoderDecoder edge_;
  std::string where_;
  int number_ = 0;
};

// MambaCache: states in and out, no keys and values.
class MambaRunner {
 public:
  MambaRunner(const ConformanceCase& test, Comparison& result)
      : test_(test),
        result_(result),
        cache_(make(test.json())),
        mamba_(cache_, host_, test.json().at("batch")) {}

  void run() {
    for (const Json& op : test_.json().at("ops")) {
      where_ = str("op ", number_++, " ", op.at("op").get<std::string>());
      if (op.at("op") == "update") {
        update(op);
      } else if (op.at("op") == "reset") {
        mamba_.reset();
        for (int32_t layer = 0; layer < cache_.num_layers(); ++layer) {
          if (!all_zero(mamba_.conv_states(layer)) || !all_zero(mamba_.ssm_states(layer)))
            result_.note(str(where_, ", layer ", layer, ": not all zero"));
        }
      } else {
        fail("unknown MambaCache operation ", op.at("op").get<std::string>());
      }
    }
  }

 private:
  Cache make(const Json& json) {
    const int32_t channels = json.at("intermediate_size");
    const Json& config = json.at("config");
    LayerSpec spec{.kind = LayerKind::kState, .conv_channels = channels};
    spec.conv_kernel = config.at("conv_kernel");
    spec.state_size = channels * config.at("state_size").get<int64_t>();
    const std::vector<LayerSpec> specs(config.at("num_hidden_layers").get<size_t>(), spec);
    return CacheRegistry().make("mamba", specs, {}, host_);
  }

  void update(const Json& op) {
    const int32_t layer = op.at("layer");
    mamba_.update(layer, test_.tensor(op.at("conv")), test_.tensor(op.at("ssm")));
    same("conv_state", mamba_.conv_states(layer), test_.tensor(op.at("conv_state")));
    same("ssm_state", mamba_.ssm_states(layer), test_.tensor(op.at("ssm_state")));
  }

  void same(const std::string& what, const TensorView& got, const TensorView& expected) {
    if (!(got.shape == expected.shape) ||
        std::memcmp(got.data, expected.data, static_cast<size_t>(got.byte_size())) != 0)
      result_.note(str(where_, ": ", what, " differs"));
  }

  const ConformanceCase& test_;
  Comparison& result_;
  HostAllocator host_;
  Cache cache_;
  MambaCache mamba_;
  std::string where_;
  int number_ = 0;
};

}  // namespace

std::string cache_case_needs(const Json& json) {
  const std::string cls = json.at("class");
  return cls == "MambaCache" || !kind_of(class_of(json)).empty() ? "" : cls;
}

void check_cache_case(const ConformanceCase& test, Comparison& result) {
  if (test.json().at("class") == "MambaCache") return MambaRunner(test, result).run();
  Runner(test, result).run();
}

}  // namespace larder::test
