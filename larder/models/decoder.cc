#include "larder/models/decoder.h"

#include <algorithm>
#include <cmath>

#include "larder/base/error.h"
#include "larder/models/layers.h"
#include "larder/models/sizes.h"

namespace larder {

std::shared_ptr<const Decoder> Decoder::load(const std::filesystem::path& folder,
                                             const LoadOptions& options, Allocator& allocator) {
  check_compute_dtype(options.dtype);
  DecoderConfig config = read_decoder_config(folder);
  DecoderWeights weights = load_decoder_weights(folder, config, options, allocator);
  const DType stored = weights.stored_dtype == DType::kF64 ? DType::kF32 : weights.stored_dtype;
  return std::make_shared<Decoder>(std::move(config), std::move(weights),
                                   options.dtype.value_or(stored));
}

std::shared_ptr<const Decoder> Decoder::outline(DecoderConfig config, DType dtype,
                                                WeightFormat weights) {
  DecoderWeights none;
  none.format = weights;
  return std::make_shared<Decoder>(std::move(config), std::move(none), dtype);
}

WeightBytes Decoder::weight_bytes(const std::filesystem::path& folder, const LoadOptions& options) {
  return decoder_weight_bytes(folder, read_decoder_config(folder), options);
}

Decoder::Decoder(DecoderConfig config, DecoderWeights weights, DType dtype)
    : config_(std::move(config)), weights_(std::move(weights)), dtype_(dtype) {
  if (config_.rope.type != RopeType::kDynamic) inv_freq_ = rope_inv_freq(config_.rope);
  for (size_t layer = 0; layer < config_.layer_types.size(); ++layer) {
    const auto at = config_.layer_types.begin() + static_cast<std::ptrdiff_t>(layer);
    if (std::find(config_.layer_types.begin(), at, *at) == at)
      first_of_type_.push_back(static_cast<int64_t>(layer));
  }
  info_ = {config_.architecture,
           config_.model_type,
           config_.vocab_size,
           config_.max_position_embeddings,
           config_.bos_token_id,
           config_.pad_token_id,
           std::nullopt,
           config_.eos_token_ids,
           false,
           num_parameters(config_),
           weights_.mapped_bytes,
           weights_.converted_bytes,
           weights_.format};
}

std::optional<std::vector<float>> Decoder::key_rotation(int64_t /*layer*/,
                                                        int64_t positions) const {
  if (inv_freq_.empty()) return std::nullopt;
  std::vector<float> cos_sin(2 * inv_freq_.size());
  rope_cos_sin(inv_freq_, 1, std::span(&positions, 1), cos_sin.data());
  return cos_sin;
}

namespace {

// How many keys back a query of such a layer may look, its own included; 0 = all. A chunk is a
// window that its queries use in part.
int64_t window_of(const DecoderConfig& config, LayerType type) {
  if (type == LayerType::kSlidingAttention) return config.sliding_window;
  return type == LayerType::kChunkedAttention ? config.attention_chunk_size : 0;
}

}  // namespace

std::vector<LayerSpec> Decoder::cache_layers() const {
  std::vector<LayerSpec> specs;
  for (const LayerType type : config_.layer_types) {
    specs.push_back({static_cast<int32_t>(config_.num_key_value_heads),
                     static_cast<int32_t>(config_.head_dim), window_of(config_, type)});
  }
  return specs;
}

// The scratch of one step. T tokens, N logit rows.
struct Decoder::Buffers {
  TensorView x;         // [T, hidden] the residual stream
  TensorView h;         // [T, hidden] what norms give
  TensorView q;         // [T, heads, head_dim]
  TensorView attended;  // the same shape
  TensorView k, v;      // [T, kv heads, head_dim]
  TensorView gate, up;  // [T, intermediate]
  TensorView rounded;   // inputs of matmuls, see take_matmul_room
  TensorView cos_sin;   // [T, 2, rotated / 2]
  TensorView last;      // [N, hidden]
  TensorView logits;    // [N, vocab]
};

template <class Take>
Decoder::Buffers Decoder::take_buffers(const Exec& exec, int64_t tokens, int64_t num_logits,
                                       const Take& take) const {
  const DecoderConfig& c = config_;
  Buffers b;
  b.logits = take(Shape{num_logits, c.vocab_size}, DType::kF32);
  b.last = take(Shape{num_logits, c.hidden_size}, DType::kF32);
  b.x = take(Shape{tokens, c.hidden_size}, DType::kF32);
  b.h = take(Shape{tokens, c.hidden_size}, DType::kF32);
  b.q = take(Shape{tokens, c.num_attention_heads, c.head_dim}, DType::kF32);
  b.attended = take(Shape{tokens, c.num_attention_heads, c.head_dim}, DType::kF32);
  b.k = take(Shape{tokens, c.num_key_value_heads, c.head_dim}, DType::kF32);
  b.v = take(Shape{tokens, c.num_key_value_heads, c.head_dim}, DType::kF32);
  b.gate = take(Shape{tokens, c.intermediate_size}, DType::kF32);
  b.up = take(Shape{tokens, c.intermediate_size}, DType::kF32);
  b.cos_sin = take(Shape{tokens, 2, c.rope.dim / 2}, DType::kF32);
  const int64_t widest =
      std::max({c.hidden_size, c.intermediate_size, c.num_attention_heads * c.head_dim});
  b.rounded =
      take_matmul_room(exec, std::max(tokens, num_logits), widest, dtype_, weights_.format, take);
  return b;
}

size_t Decoder::scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits,
                              int64_t kv_len, AttentionKind attention) const {
  size_t bytes = 0;
  Buffers b = take_buffers(exec, step.total_q, num_logits, [&](const Shape& shape, DType dtype) {
    bytes += Arena::padded(shape.count(), dtype);
    return TensorView::contiguous(nullptr, dtype, shape);
  });
  size_t most = 0;
  for (const int64_t layer : first_of_type_) {
    AttendArgs args = attend_args(step, layer, b);
    args.kv = {1,
               static_cast<int32_t>(config_.num_key_value_heads),
               static_cast<int32_t>(config_.head_dim),
               {}};
    args.kv.segment[0].max_len = static_cast<int32_t>(kv_len);
    most = std::max(most, attend_scratch_bytes(exec, attention, args));
  }
  return bytes + most;
}

AttendArgs Decoder::attend_args(const Step& step, int64_t layer, const Buffers& b) const {
  AttendArgs args;
  args.out = b.attended;
  args.q = b.q;
  args.batch = step.batch;
  args.q_start = step.q_start;
  args.q_position = step.position;
  args.compute = dtype_;
  args.scale = static_cast<float>(config_.attention_scale);
  args.softcap = static_cast<float>(config_.attn_logit_softcapping);
  const LayerType type = config_.layer_types[static_cast<size_t>(layer)];
  args.window = type == LayerType::kSlidingAttention ? config_.sliding_window : 0;
  args.chunk = type == LayerType::kChunkedAttention ? config_.attention_chunk_size : 0;
  return args;
}

TensorView Decoder::forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
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
    embed_ids(exec, weights_.embed, ids, static_cast<float>(config_.embedding_multiplier), dtype_,
              b.x);
    rope_tables(step, b.cos_sin);
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      attention(exec, step, layer, cache, kind, b);
      mlp(exec, weights_.layers[static_cast<size_t>(layer)], b);
    }
    head(exec, logit_rows, b);
    return b.logits;
  } catch (...) {
    cache.cancel(step);
    throw;
  }
}

void Decoder::rope_tables(const Step& step, const TensorView& cos_sin) const {
  const int64_t floats = config_.rope.dim;  // 2 * dim / 2 a token
  for (int32_t b = 0; b < step.batch; ++b) {
    if (step.q_len(b) == 0) continue;
    const std::span positions(step.position + step.q_start[b], static_cast<size_t>(step.q_len(b)));
    float* out = cos_sin.as<float>() + step.q_start[b] * floats;
    if (config_.rope.type == RopeType::kDynamic) {
      rope_cos_sin(rope_inv_freq(config_.rope, positions.back() + 1), config_.rope.attention_factor,
                   positions, out);
    } else {
      rope_cos_sin(inv_freq_, config_.rope.attention_factor, positions, out);
    }
  }
}

void Decoder::norm(const Exec& exec, const TensorView& out, const TensorView& x,
                   const float* weight) const {
  exec.kernels.rms_norm(exec, out, x, weight, static_cast<float>(config_.norm_weight_offset),
                        static_cast<float>(config_.rms_norm_eps));
}

void Decoder::linear(const Exec& exec, const TensorView& x, std::initializer_list<Product> products,
                     const Buffers& b) const {
  larder::linear(exec, x, products, dtype_, b.rounded);
}

void Decoder::attention(Exec& exec, const Step& step, int64_t layer, Cache& cache,
                        AttentionKind kind, const Buffers& b) const {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  norm(exec, b.h, b.x, w.input_norm);
  linear(exec, b.h, {{b.q, w.q}, {b.k, w.k}, {b.v, w.v}}, b);
  exec.kernels.rope(exec, b.q, b.cos_sin.as<float>(), config_.rope.dim / 2);
  exec.kernels.rope(exec, b.k, b.cos_sin.as<float>(), config_.rope.dim / 2);
  KVLayer& kept = cache.kv(static_cast<int32_t>(layer));
  AttendArgs args = attend_args(step, layer, b);
  args.kv = kept.append(exec, b.k, b.v, step);
  attend(exec, kind, args);
  kept.commit(step);
  add_block(exec, b.attended, w.o, w.post_attention_norm, b);
}

void Decoder::mlp(const Exec& exec, const LayerWeights& w, const Buffers& b) const {
  norm(exec, b.h, b.x, w.mlp_norm);
  linear(exec, b.h, {{b.gate, w.gate}, {b.up, w.up}}, b);
  exec.kernels.gate_mul(exec, b.gate, b.up, config_.hidden_act);
  add_block(exec, b.gate, w.down, w.post_mlp_norm, b);
}

// The residual stream plus what a block gives: its last product, normed first where the family does
// so.
void Decoder::add_block(const Exec& exec, const TensorView& input, const LinearWeights& last,
                        const float* post_norm, const Buffers& b) const {
  if (post_norm == nullptr) return linear(exec, input, {{b.x, last, b.x.as<float>()}}, b);
  linear(exec, input, {{b.h, last}}, b);
  norm(exec, b.h, b.h, post_norm);
  add_to(exec, b.x, b.h);
}

void Decoder::head(const Exec& exec, std::span<const int32_t> logit_rows, const Buffers& b) const {
  if (logit_rows.empty()) return;
  gather_rows(b.last, b.x, logit_rows);
  norm(exec, b.last, b.last, weights_.final_norm);
  linear(exec, b.last, {{b.logits, {weights_.lm_head, nullptr}}}, b);
  if (config_.final_logit_softcapping > 0) {
    exec.kernels.softcap(exec, b.logits.as<float>(), b.logits.count(),
                         static_cast<float>(config_.final_logit_softcapping));
  }
}

}  // namespace larder
