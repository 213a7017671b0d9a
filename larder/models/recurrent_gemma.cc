#include "larder/models/recurrent_gemma.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "larder/base/error.h"
#include "larder/models/layers.h"
#include "larder/models/scan.h"

namespace larder {

std::shared_ptr<const Model> RecurrentGemma::load(const std::filesystem::path& folder,
                                                  const LoadOptions& options,
                                                  Allocator& allocator) {
  check_compute_dtype(options.dtype);
  RecurrentGemmaConfig config = read_recurrent_gemma_config(folder);
  RecurrentGemmaWeights weights = load_recurrent_gemma_weights(folder, config, options, allocator);
  const DType stored = weights.stored_dtype == DType::kF64 ? DType::kF32 : weights.stored_dtype;
  return std::make_shared<RecurrentGemma>(std::move(config), std::move(weights),
                                          options.dtype.value_or(stored));
}

std::shared_ptr<const Model> RecurrentGemma::outline(const Json& config, const std::string& what,
                                                     DType dtype, WeightFormat weights) {
  RecurrentGemmaWeights none;
  none.format = weights;
  return std::make_shared<RecurrentGemma>(read_recurrent_gemma_config(config, what),
                                          std::move(none), dtype);
}

WeightBytes RecurrentGemma::weight_bytes(const std::filesystem::path& folder,
                                         const LoadOptions& options) {
  return recurrent_gemma_weight_bytes(folder, read_recurrent_gemma_config(folder), options);
}

RecurrentGemma::RecurrentGemma(RecurrentGemmaConfig config, RecurrentGemmaWeights weights,
                               DType dtype)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      dtype_(dtype),
      inv_freq_(rope_inv_freq(config_.rope)) {
  info_.architecture = "RecurrentGemmaForCausalLM";
  info_.model_type = "recurrent_gemma";
  info_.vocab_size = config_.vocab_size;
  info_.max_position_embeddings = config_.max_position_embeddings;
  info_.bos_token_id = config_.token_ids.bos_token_id;
  info_.pad_token_id = config_.token_ids.pad_token_id;
  info_.eos_token_ids = config_.token_ids.eos_token_ids;
  info_.num_parameters = num_parameters(config_);
  info_.mapped_weight_bytes = weights_.mapped_bytes;
  info_.converted_weight_bytes = weights_.converted_bytes;
  info_.weights = weights_.format;
}

std::vector<LayerSpec> RecurrentGemma::cache_layers() const {
  return recurrent_gemma_layer_specs(config_);
}

// The scratch of one step. T tokens, N logit rows.
struct RecurrentGemma::Buffers {
  TensorView x, h;                    // [T, hidden] the residual stream, and what norms give
  TensorView gate, up;                // [T, intermediate / 2]
  TensorView branch, conv, side;      // [T, lru] x branch, its convolution, y branch
  TensorView input_gate, decay_gate;  // [T, lru] before the sigmoid
  TensorView q, attended;             // [T, heads, head_dim]
  TensorView k, v;                    // [T, kv heads, head_dim]
  TensorView cos_sin;                 // [T, 2, rotated / 2]
  TensorView rounded;                 // inputs of matmuls, see take_matmul_room
  TensorView last, logits;            // [N, hidden], [N, vocab]
};

template <class Take>
RecurrentGemma::Buffers RecurrentGemma::take_buffers(const Exec& exec, int64_t tokens,
                                                     int64_t num_logits, const Take& take) const {
  const RecurrentGemmaConfig& c = config_;
  const int64_t inner = c.intermediate_size / 2;
  Buffers b;
  b.logits = take(Shape{num_logits, c.vocab_size}, DType::kF32);
  b.last = take(Shape{num_logits, c.hidden_size}, DType::kF32);
  b.x = take(Shape{tokens, c.hidden_size}, DType::kF32);
  b.h = take(Shape{tokens, c.hidden_size}, DType::kF32);
  for (TensorView* view : {&b.gate, &b.up}) *view = take(Shape{tokens, inner}, DType::kF32);
  for (TensorView* view : {&b.branch, &b.conv, &b.side, &b.input_gate, &b.decay_gate})
    *view = take(Shape{tokens, c.lru_width}, DType::kF32);
  for (TensorView* view : {&b.q, &b.attended})
    *view = take(Shape{tokens, c.num_attention_heads, c.head_dim}, DType::kF32);
  for (TensorView* view : {&b.k, &b.v})
    *view = take(Shape{tokens, c.num_key_value_heads, c.head_dim}, DType::kF32);
  b.cos_sin = take(Shape{tokens, 2, c.rope.dim / 2}, DType::kF32);
  const int64_t widest =
      std::max({c.hidden_size, inner, c.lru_width, c.num_attention_heads * c.head_dim});
  b.rounded =
      take_matmul_room(exec, std::max(tokens, num_logits), widest, dtype_, weights_.format, take);
  return b;
}

size_t RecurrentGemma::scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits,
                                     int64_t kv_len, AttentionKind attention) const {
  size_t bytes = 0;
  const Buffers b =
      take_buffers(exec, step.total_q, num_logits, [&](const Shape& shape, DType dtype) {
        bytes += Arena::padded(shape.count(), dtype);
        return TensorView::contiguous(nullptr, dtype, shape);
      });
  AttendArgs args = attend_args(step, b);
  args.kv.num_segments = 1;
  args.kv.num_kv_heads = static_cast<int32_t>(config_.num_key_value_heads);
  args.kv.head_dim = static_cast<int32_t>(config_.head_dim);
  args.kv.segment[0].max_len = static_cast<int32_t>(kv_len);
  return bytes + attend_scratch_bytes(exec, attention, args);
}

AttendArgs RecurrentGemma::attend_args(const Step& step, const Buffers& b) const {
  AttendArgs args;
  args.out = b.attended;
  args.q = b.q;
  args.batch = step.batch;
  args.q_start = step.q_start;
  args.q_position = step.position;
  args.compute = dtype_;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
  args.window = config_.attention_window_size;
  return args;
}

namespace {

// The root of the hidden size is rounded to bf16 whatever is computed in.
float embedding_multiplier(int64_t hidden_size) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(hidden_size)));
  return bf16_to_f32(f32_to_bf16(root));
}

}  // namespace

TensorView RecurrentGemma::forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                                   std::span<const int32_t> logit_rows, Cache& cache,
                                   AttentionKind kind) const {
  LARDER_ASSERT(ids.size() == static_cast<size_t>(step.total_q));
  check_ids(ids, config_.vocab_size);
  const auto num_logits = static_cast<int64_t>(logit_rows.size());
  exec.scratch.reset();
  exec.scratch.reserve(scratch_bytes(exec, step, num_logits, kv_bound(cache, step), kind));
  cache.begin(step);
  try {
    const Buffers b = take_buffers(
        exec, step.total_q, num_logits,
        [&](const Shape& shape, DType dtype) { return exec.scratch.take(shape, dtype); });
    embed_ids(exec, weights_.embed, ids, embedding_multiplier(config_.hidden_size), dtype_, b.x);
    rope_cos_sin(inv_freq_, 1, {step.position, static_cast<size_t>(step.total_q)},
                 b.cos_sin.as<float>());
    for (int64_t index = 0; index < config_.num_hidden_layers; ++index) {
      const RecurrentGemmaLayer& w = weights_.layers[static_cast<size_t>(index)];
      norm(exec, b.h, b.x, w.temporal_norm);
      if (config_.block_types[static_cast<size_t>(index)] == BlockType::kAttention)
        attention(exec, step, index, cache, kind, b);
      else
        recurrence(exec, step, index, cache, b);
      mlp(exec, w, b);
    }
    head(exec, logit_rows, b);
    return b.logits;
  } catch (...) {
    cache.cancel(step);
    throw;
  }
}

void RecurrentGemma::norm(const Exec& exec, const TensorView& out, const TensorView& x,
                          const float* weight) const {
  exec.kernels.rms_norm(exec, out, x, weight, 1, static_cast<float>(config_.rms_norm_eps));
}

void RecurrentGemma::attention(Exec& exec, const Step& step, int64_t index, Cache& cache,
                               AttentionKind kind, const Buffers& b) const {
  const RecurrentGemmaLayer& w = weights_.layers[static_cast<size_t>(index)];
  linear(exec, b.h, {{b.q, w.q}, {b.k, w.k}, {b.v, w.v}}, dtype_, b.rounded);
  exec.kernels.rope(exec, b.q, b.cos_sin.as<float>(), config_.rope.dim / 2);
  exec.kernels.rope(exec, b.k, b.cos_sin.as<float>(), config_.rope.dim / 2);
  KVLayer& layer = cache.kv(static_cast<int32_t>(index));
  AttendArgs args = attend_args(step, b);
  args.kv = layer.append(exec, b.k, b.v, step);
  attend(exec, kind, args);
  layer.commit(step);
  linear(exec, b.attended, {{b.x, w.o, b.x.as<float>()}}, dtype_, b.rounded);
}

void RecurrentGemma::recurrence(const Exec& exec, const Step& step, int64_t index, Cache& cache,
                                const Buffers& b) const {
  const RecurrentGemmaLayer& w = weights_.layers[static_cast<size_t>(index)];
  StateLayer& state = cache.state(static_cast<int32_t>(index));
  linear(exec, b.h, {{b.side, w.linear_y}, {b.branch, w.linear_x}}, dtype_, b.rounded);
  causal_conv(exec, step, state,
              {b.branch, b.conv, w.conv_weight, w.conv_bias, config_.conv1d_width, false});
  gates(exec, w, b);
  gated_lru(exec, step, state, {b.conv, b.input_gate, b.decay_gate, b.conv, w.rate});
  exec.kernels.gate_mul(exec, b.side, b.conv, config_.hidden_activation);
  linear(exec, b.side, {{b.x, w.linear_out, b.x.as<float>()}}, dtype_, b.rounded);
  state.commit(step);
}

// Both gates see the convolution's output head by head: block-diagonal products.
void RecurrentGemma::gates(const Exec& exec, const RecurrentGemmaLayer& w, const Buffers& b) const {
  const int64_t width = config_.lru_width / config_.num_attention_heads;
  const MatmulInput input = matmul_input(exec, b.conv, w.input_gate.dtype, dtype_, b.rounded);
  std::array<MatmulArgs, 8> args;
  size_t n = 0;
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    const int64_t begin = head * width, end = begin + width;
    const auto product = [&](const TensorView& out, const TensorView& gate, const float* bias) {
      args[n++] = {out.slice(1, begin, end),
                   input.x.slice(1, begin, end),
                   gate.slice(0, head, head + 1).reshape({width, width}),
                   bias + begin,
                   nullptr,
                   input.room};
    };
    product(b.input_gate, w.input_gate, w.input_bias);
    product(b.decay_gate, w.decay_gate, w.decay_bias);
    if (n < args.size() && head + 1 < config_.num_attention_heads) continue;
    exec.kernels.matmul(exec, std::span(args).first(n));
    n = 0;
  }
}

void RecurrentGemma::mlp(const Exec& exec, const RecurrentGemmaLayer& w, const Buffers& b) const {
  norm(exec, b.h, b.x, w.channel_norm);
  linear(exec, b.h, {{b.gate, w.gate}, {b.up, w.up}}, dtype_, b.rounded);
  exec.kernels.gate_mul(exec, b.gate, b.up, config_.hidden_activation);
  linear(exec, b.gate, {{b.x, w.down, b.x.as<float>()}}, dtype_, b.rounded);
}

void RecurrentGemma::head(const Exec& exec, std::span<const int32_t> logit_rows,
                          const Buffers& b) const {
  if (logit_rows.empty()) return;
  gather_rows(b.last, b.x, logit_rows);
  norm(exec, b.last, b.last, weights_.final_norm);
  linear(exec, b.last, {{b.logits, {weights_.lm_head, nullptr}}}, dtype_, b.rounded);
  if (config_.logits_soft_cap > 0) {
    exec.kernels.softcap(exec, b.logits.as<float>(), b.logits.count(),
                         static_cast<float>(config_.logits_soft_cap));
  }
}

}  // namespace larder
