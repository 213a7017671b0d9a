#include "larder/models/mamba.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "larder/base/error.h"
#include "larder/models/layers.h"
#include "larder/models/scan.h"

namespace larder {
namespace {

void want_layer(WeightLoader& loader, const MambaConfig& c, int64_t index, MambaLayerWeights& to) {
  const std::string at = str("backbone.layers.", index, "."), mixer = at + "mixer.";
  const int64_t inner = c.intermediate_size, states = c.state_size;
  loader.vector(at + "norm.weight", {c.hidden_size}, to.norm);
  loader.linear(mixer + "in_proj", 2 * inner, c.hidden_size, c.use_bias, to.in_proj);
  loader.vector(mixer + "conv1d.weight", {inner, 1, c.conv_kernel}, to.conv_weight);
  if (c.use_conv_bias) loader.vector(mixer + "conv1d.bias", {inner}, to.conv_bias);
  loader.linear(mixer + "x_proj", c.time_step_rank + 2 * states, inner, false, to.x_proj);
  loader.linear(mixer + "dt_proj", inner, c.time_step_rank, true, to.dt_proj);
  loader.vector(mixer + "A_log", {inner, states}, to.a);
  loader.vector(mixer + "D", {inner}, to.skip);
  loader.linear(mixer + "out_proj", c.hidden_size, inner, c.use_bias, to.out_proj);
}

// The first checkpoints say "embedding".
std::string embedding_name(const SafetensorsFolder& files) {
  const std::string older = "backbone.embedding.weight";
  return files.find(older) ? older : "backbone.embeddings.weight";
}

// Gives the embedding's name.
std::string want_weights(WeightLoader& loader, const SafetensorsFolder& files, const MambaConfig& c,
                         MambaWeights& weights) {
  std::string embedding = embedding_name(files);
  loader.matrix(embedding, c.vocab_size, c.hidden_size, weights.embed);
  if (!c.tie_word_embeddings)
    loader.matrix("lm_head.weight", c.vocab_size, c.hidden_size, weights.lm_head);
  loader.vector("backbone.norm_f.weight", {c.hidden_size}, weights.final_norm);
  weights.layers.resize(static_cast<size_t>(c.num_hidden_layers));
  for (size_t i = 0; i < weights.layers.size(); ++i)
    want_layer(loader, c, static_cast<int64_t>(i), weights.layers[i]);
  return embedding;
}

MambaWeights load_weights(const std::filesystem::path& folder, const MambaConfig& c,
                          const LoadOptions& options, Allocator& allocator) {
  MambaWeights weights;
  weights.files = std::make_unique<SafetensorsFolder>(folder);
  WeightLoader loader(*weights.files, folder);
  loader.load(weights, want_weights(loader, *weights.files, c, weights), options, allocator);
  if (c.tie_word_embeddings) weights.lm_head = weights.embed;
  // Vectors are copies of our own.
  for (const MambaLayerWeights& layer : weights.layers) {
    auto* a = const_cast<float*>(layer.a);
    for (int64_t i = 0; i < c.intermediate_size * c.state_size; ++i) a[i] = -std::exp(a[i]);
  }
  return weights;
}

}  // namespace

std::shared_ptr<const Model> Mamba::load(const std::filesystem::path& folder,
                                         const LoadOptions& options, Allocator& allocator) {
  check_compute_dtype(options.dtype);
  MambaConfig config = read_mamba_config(folder);
  MambaWeights weights = load_weights(folder, config, options, allocator);
  const DType stored = weights.stored_dtype == DType::kF64 ? DType::kF32 : weights.stored_dtype;
  return std::make_shared<Mamba>(std::move(config), std::move(weights),
                                 options.dtype.value_or(stored));
}

std::shared_ptr<const Model> Mamba::outline(const Json& config, const std::string& what,
                                            DType dtype, WeightFormat weights) {
  MambaWeights none;
  none.format = weights;
  return std::make_shared<Mamba>(read_mamba_config(config, what), std::move(none), dtype);
}

WeightBytes Mamba::weight_bytes(const std::filesystem::path& folder, const LoadOptions& options) {
  const SafetensorsFolder files(folder);
  MambaWeights weights;
  WeightLoader loader(files, folder);
  return loader.bytes(want_weights(loader, files, read_mamba_config(folder), weights), options);
}

Mamba::Mamba(MambaConfig config, MambaWeights weights, DType dtype)
    : config_(std::move(config)), weights_(std::move(weights)), dtype_(dtype) {
  info_.architecture = "MambaForCausalLM";
  info_.model_type = "mamba";
  info_.vocab_size = config_.vocab_size;
  info_.max_position_embeddings = std::numeric_limits<int64_t>::max();
  info_.bos_token_id = config_.token_ids.bos_token_id;
  info_.pad_token_id = config_.token_ids.pad_token_id;
  info_.eos_token_ids = config_.token_ids.eos_token_ids;
  info_.num_parameters = num_parameters(config_);
  info_.mapped_weight_bytes = weights_.mapped_bytes;
  info_.converted_weight_bytes = weights_.converted_bytes;
  info_.weights = weights_.format;
}

std::vector<LayerSpec> Mamba::cache_layers() const {
  return std::vector<LayerSpec>(static_cast<size_t>(config_.num_hidden_layers),
                                mamba_layer_spec(config_));
}

// The scratch of one step. T tokens, N logit rows.
struct Mamba::Buffers {
  TensorView x, h;       // [T, hidden] the residual stream, and what norms give
  TensorView projected;  // [T, 2 * inner] input of the convolution, then the gate
  TensorView u, dt, y;   // [T, inner] output of the convolution, time steps, output of the scan
  TensorView params;     // [T, rank + 2 * states] time steps, B, C
  TensorView rounded;    // inputs of matmuls, see take_matmul_room
  TensorView last;       // [N, hidden]
  TensorView logits;     // [N, vocab]
};

template <class Take>
Mamba::Buffers Mamba::take_buffers(const Exec& exec, int64_t tokens, int64_t num_logits,
                                   const Take& take) const {
  const MambaConfig& c = config_;
  const int64_t inner = c.intermediate_size;
  Buffers b;
  b.logits = take(Shape{num_logits, c.vocab_size}, DType::kF32);
  b.last = take(Shape{num_logits, c.hidden_size}, DType::kF32);
  b.x = take(Shape{tokens, c.hidden_size}, DType::kF32);
  b.h = take(Shape{tokens, c.hidden_size}, DType::kF32);
  b.projected = take(Shape{tokens, 2 * inner}, DType::kF32);
  b.u = take(Shape{tokens, inner}, DType::kF32);
  b.dt = take(Shape{tokens, inner}, DType::kF32);
  b.y = take(Shape{tokens, inner}, DType::kF32);
  b.params = take(Shape{tokens, c.time_step_rank + 2 * c.state_size}, DType::kF32);
  b.rounded = take_matmul_room(exec, std::max(tokens, num_logits),
                               std::max({c.hidden_size, inner, c.time_step_rank}), dtype_,
                               weights_.format, take);
  return b;
}

size_t Mamba::scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits,
                            int64_t /*kv_len*/, AttentionKind /*attention*/) const {
  size_t bytes = 0;
  take_buffers(exec, step.total_q, num_logits, [&](const Shape& shape, DType dtype) {
    bytes += Arena::padded(shape.count(), dtype);
    return TensorView::contiguous(nullptr, dtype, shape);
  });
  return bytes;
}

TensorView Mamba::forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                          std::span<const int32_t> logit_rows, Cache& cache,
                          AttentionKind attention) const {
  LARDER_ASSERT(ids.size() == static_cast<size_t>(step.total_q));
  check_ids(ids, config_.vocab_size);
  const auto num_logits = static_cast<int64_t>(logit_rows.size());
  exec.scratch.reset();
  exec.scratch.reserve(scratch_bytes(exec, step, num_logits, 0, attention));
  cache.begin(step);
  const Buffers b = take_buffers(
      exec, step.total_q, num_logits,
      [&](const Shape& shape, DType dtype) { return exec.scratch.take(shape, dtype); });
  embed_ids(exec, weights_.embed, ids, 1, dtype_, b.x);
  for (int64_t index = 0; index < config_.num_hidden_layers; ++index)
    layer(exec, step, index, cache, b);
  head(exec, logit_rows, b);
  return b.logits;
}

void Mamba::layer(const Exec& exec, const Step& step, int64_t index, Cache& cache,
                  const Buffers& b) const {
  const MambaLayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const int64_t inner = config_.intermediate_size, rank = config_.time_step_rank;
  const int64_t states = config_.state_size;
  StateLayer& state = cache.state(static_cast<int32_t>(index));
  exec.kernels.rms_norm(exec, b.h, b.x, w.norm, 0, static_cast<float>(config_.layer_norm_epsilon));
  linear(exec, b.h, {{b.projected, w.in_proj}}, dtype_, b.rounded);
  const TensorView conv_in = b.projected.slice(1, 0, inner),
                   gate = b.projected.slice(1, inner, 2 * inner);
  causal_conv(exec, step, state,
              {conv_in, b.u, w.conv_weight, w.conv_bias, config_.conv_kernel, true});
  linear(exec, b.u, {{b.params, w.x_proj}}, dtype_, b.rounded);
  linear(exec, b.params.slice(1, 0, rank), {{b.dt, w.dt_proj}}, dtype_, b.rounded);
  selective_scan(exec, step, state,
                 {b.u, b.dt, b.y, b.params.slice(1, rank, rank + states),
                  b.params.slice(1, rank + states, rank + 2 * states), w.a, w.skip});
  exec.kernels.gate_mul(exec, gate, b.y, Activation::kSilu);
  linear(exec, gate, {{b.x, w.out_proj, b.x.as<float>()}}, dtype_, b.rounded);
  state.commit(step);
}

void Mamba::head(const Exec& exec, std::span<const int32_t> logit_rows, const Buffers& b) const {
  if (logit_rows.empty()) return;
  gather_rows(b.last, b.x, logit_rows);
  exec.kernels.rms_norm(exec, b.last, b.last, weights_.final_norm, 0,
                        static_cast<float>(config_.layer_norm_epsilon));
  linear(exec, b.last, {{b.logits, {weights_.lm_head, nullptr}}}, dtype_, b.rounded);
}

}  // namespace larder
