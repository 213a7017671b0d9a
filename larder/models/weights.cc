#include "larder/models/weights.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/models/family.h"

namespace larder {
namespace {

constexpr size_t kMostProblems = 40;

// Collects what the model needs, checks all of it, then hands it out.
class Loader {
 public:
  Loader(const SafetensorsFolder& files, std::string where)
      : files_(files), where_(std::move(where)) {}

  void matrix(const std::string& name, int64_t out, int64_t in, TensorView& to) {
    wanted_.push_back({name, {out, in}, &to, nullptr});
  }
  void vector(const std::string& name, int64_t n, const float*& to) {
    if (!name.empty()) wanted_.push_back({name, {n}, nullptr, &to});
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool bias, LinearWeights& to) {
    matrix(name + ".weight", out, in, to.w);
    if (bias) vector(name + ".bias", out, to.bias);
  }

  void check() const {
    std::vector<std::string> problems;
    for (const Wanted& wanted : wanted_) {
      if (std::string problem = check_one(wanted); !problem.empty())
        problems.push_back(std::move(problem));
    }
    if (problems.empty()) return;
    const size_t count = problems.size();
    problems.resize(std::min(count, kMostProblems));
    if (count > kMostProblems) problems.push_back(str("and ", count - kMostProblems, " more"));
    fail(where_, ": ", count, " weights do not fit the config: ", join(problems, "; "));
  }

  void load(DecoderWeights& weights, DType compute, Allocator& allocator) const {
    weights.owned.reserve(wanted_.size());
    for (const Wanted& wanted : wanted_) {
      const StoredTensor& stored = *files_.find(wanted.name);
      const TensorView view = stored.view();
      const bool in_place = wanted.matrix && (stored.dtype == compute ||
                                              (compute == DType::kF32 && widened(stored.dtype)));
      if (in_place) {
        *wanted.matrix = view;
        weights.mapped_bytes += stored.bytes;
        continue;
      }
      weights.owned.push_back(
          clone(allocator, view, wanted.matrix ? compute : DType::kF32, "weights"));
      const TensorView& copy = weights.owned.back();
      weights.converted_bytes += static_cast<size_t>(copy.byte_size());
      if (wanted.matrix) *wanted.matrix = copy;
      if (wanted.vector) *wanted.vector = copy.as<const float>();
    }
  }

 private:
  struct Wanted {
    std::string name;
    std::vector<int64_t> shape;
    TensorView* matrix;
    const float** vector;
  };

  static bool widened(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
  static bool usable(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF64 || widened(dtype);
  }

  std::string check_one(const Wanted& wanted) const {
    const StoredTensor* stored = files_.find(wanted.name);
    if (!stored) return str(in_quotes(wanted.name), " is missing");
    if (stored->shape != wanted.shape) {
      return str(in_quotes(wanted.name), " is [", join(stored->shape, ", "), "], expected [",
                 join(wanted.shape, ", "), "]");
    }
    if (!usable(stored->dtype)) {
      return str(in_quotes(wanted.name), " is ", dtype_name(stored->dtype),
                 "; weights may be f32, f16, bf16 or f64");
    }
    return {};
  }

  const SafetensorsFolder& files_;
  std::string where_;
  std::vector<Wanted> wanted_;
};

void want_layer(Loader& loader, const DecoderConfig& c, const LayerNames& names, LayerWeights& to) {
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  const auto norm = [&](const std::string& name, const float*& weight) {
    loader.vector(name.empty() ? name : name + ".weight", c.hidden_size, weight);
  };
  norm(names.input_norm, to.input_norm);
  loader.linear(names.q, q, c.hidden_size, c.attention_bias, to.q);
  loader.linear(names.k, kv, c.hidden_size, c.attention_bias, to.k);
  loader.linear(names.v, kv, c.hidden_size, c.attention_bias, to.v);
  loader.linear(names.o, c.hidden_size, q, c.attention_bias, to.o);
  norm(names.post_attention_norm, to.post_attention_norm);
  norm(names.mlp_norm, to.mlp_norm);
  loader.linear(names.gate, c.intermediate_size, c.hidden_size, c.mlp_bias, to.gate);
  loader.linear(names.up, c.intermediate_size, c.hidden_size, c.mlp_bias, to.up);
  loader.linear(names.down, c.hidden_size, c.intermediate_size, c.mlp_bias, to.down);
  norm(names.post_mlp_norm, to.post_mlp_norm);
}

}  // namespace

DecoderWeights load_decoder_weights(const std::filesystem::path& folder,
                                    const DecoderConfig& config, std::optional<DType> dtype,
                                    Allocator& allocator) {
  DecoderWeights weights;
  weights.files = std::make_unique<SafetensorsFolder>(folder);
  const Family* found = find_family(config.architecture);
  LARDER_ASSERT(found);  // the config was read by it
  const Family& family = *found;
  const ModelNames names = family.model_names();
  Loader loader(*weights.files, folder.string());
  loader.matrix(names.embed + ".weight", config.vocab_size, config.hidden_size, weights.embed);
  if (!config.tie_word_embeddings) {
    loader.matrix(names.lm_head + ".weight", config.vocab_size, config.hidden_size,
                  weights.lm_head);
  }
  loader.vector(names.final_norm + ".weight", config.hidden_size, weights.final_norm);
  weights.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    want_layer(loader, config, family.layer_names(static_cast<int64_t>(i)), weights.layers[i]);
  }
  loader.check();
  weights.stored_dtype = weights.files->find(names.embed + ".weight")->dtype;
  const DType compute =
      dtype.value_or(weights.stored_dtype == DType::kF64 ? DType::kF32 : weights.stored_dtype);
  loader.load(weights, compute, allocator);
  if (config.tie_word_embeddings) weights.lm_head = weights.embed;
  return weights;
}

}  // namespace larder
