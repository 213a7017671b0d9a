#include "larder/models/t5.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "larder/base/error.h"
#include "larder/models/layers.h"

namespace larder {

std::shared_ptr<const Model> T5::load(const std::filesystem::path& folder,
                                      const LoadOptions& options, Allocator& allocator) {
  check_compute_dtype(options.dtype);
  T5Config config = read_t5_config(folder);
  T5Weights weights = load_t5_weights(folder, config, options, allocator);
  const DType stored = weights.stored_dtype == DType::kF64 ? DType::kF32 : weights.stored_dtype;
  return std::make_shared<T5>(std::move(config), std::move(weights),
                              options.dtype.value_or(stored));
}

std::shared_ptr<const Model> T5::outline(const Json& config, const std::string& what, DType dtype,
                                         WeightFormat format) {
  T5Config sizes = read_t5_config(config, what);
  const std::vector<float> bias(
      static_cast<size_t>(sizes.relative_attention_num_buckets * sizes.num_heads));
  T5Weights weights;
  weights.format = format;
  weights.encoder.bias = weights.decoder.bias = bias.data();  // copied by distance
  return std::make_shared<T5>(std::move(sizes), std::move(weights), dtype);
}

WeightBytes T5::weight_bytes(const std::filesystem::path& folder, const LoadOptions& options) {
  return t5_weight_bytes(folder, read_t5_config(folder), options);
}

T5::T5(T5Config config, T5Weights weights, DType dtype)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      dtype_(dtype),
      encoder_bias_(weights_.encoder.bias, config_.relative_attention_num_buckets,
                    config_.num_heads, config_.relative_attention_max_distance, Direction::kBoth),
      decoder_bias_(weights_.decoder.bias, config_.relative_attention_num_buckets,
                    config_.num_heads, config_.relative_attention_max_distance,
                    Direction::kBackward) {
  info_.architecture = "T5ForConditionalGeneration";
  info_.model_type = "t5";
  info_.vocab_size = config_.vocab_size;
  info_.max_position_embeddings = std::numeric_limits<int64_t>::max();
  info_.bos_token_id = config_.token_ids.bos_token_id;
  info_.pad_token_id = config_.token_ids.pad_token_id;
  info_.decoder_start_token_id = config_.token_ids.decoder_start_token_id;
  info_.eos_token_ids = config_.token_ids.eos_token_ids;
  info_.is_encoder_decoder = true;
  info_.num_parameters = num_parameters(config_);
  info_.mapped_weight_bytes = weights_.mapped_bytes;
  info_.converted_weight_bytes = weights_.converted_bytes;
  info_.weights = weights_.format;
}

// The scratch of one step. T tokens, N logit rows, B rows.
struct T5::Buffers {
  TensorView x, h;                    // [T, d_model] the residual stream, and what norms give
  TensorView q, attended, k, v;       // [T, heads, d_kv]
  TensorView gate, up;                // [T, d_ff]; gate only where there is one
  TensorView rounded;                 // inputs of matmuls, see take_matmul_room
  TensorView bias;                    // tables by distance, see RelativeBias
  TensorView last, logits;            // [N, d_model], [N, vocab]
  TensorView offset, first_position;  // [B] i64, of the encoder's own view
  TensorView begin, len;              // [B] i32
  TensorView no_queries;              // [B + 1] i32 zeros: the step that reads cross layers
};

template <class Take>
T5::Buffers T5::take_buffers(const Exec& exec, const Step& step, const RelativeBias& bias,
                             Sizes sizes, const Take& take) const {
  const T5Config& c = config_;
  const int64_t tokens = step.total_q;
  Buffers b;
  b.logits = take(Shape{sizes.num_logits, c.vocab_size}, DType::kF32);
  b.last = take(Shape{sizes.num_logits, c.d_model}, DType::kF32);
  for (TensorView* view : {&b.x, &b.h}) *view = take(Shape{tokens, c.d_model}, DType::kF32);
  for (TensorView* view : {&b.q, &b.attended, &b.k, &b.v})
    *view = take(Shape{tokens, c.num_heads, c.d_kv}, DType::kF32);
  b.up = take(Shape{tokens, c.d_ff}, DType::kF32);
  if (c.is_gated_act) b.gate = take(Shape{tokens, c.d_ff}, DType::kF32);
  b.bias = take(Shape{bias.floats(step, sizes.self_len)}, DType::kF32);
  for (TensorView* view : {&b.offset, &b.first_position})
    *view = take(Shape{step.batch}, DType::kI64);
  for (TensorView* view : {&b.begin, &b.len}) *view = take(Shape{step.batch}, DType::kI32);
  b.no_queries = take(Shape{step.batch + 1}, DType::kI32);
  b.rounded = take_matmul_room(exec, std::max(tokens, sizes.num_logits),
                               std::max({c.d_model, c.d_ff, c.num_heads * c.d_kv}), dtype_,
                               weights_.format, take);
  return b;
}

size_t T5::bytes_of(const Exec& exec, const Step& step, const RelativeBias& bias, Sizes sizes,
                    AttentionKind kind) const {
  size_t bytes = 0;
  const Buffers b = take_buffers(exec, step, bias, sizes, [&](const Shape& shape, DType dtype) {
    bytes += Arena::padded(shape.count(), dtype);
    return TensorView::contiguous(nullptr, dtype, shape);
  });
  AttendArgs args = attend_args(step, b);
  args.kv.num_segments = 1;
  args.kv.num_kv_heads = static_cast<int32_t>(config_.num_heads);
  args.kv.head_dim = static_cast<int32_t>(config_.d_kv);
  args.kv.segment[0].max_len = static_cast<int32_t>(std::max(sizes.self_len, sizes.cross_len));
  return bytes + attend_scratch_bytes(exec, kind, args);
}

void T5::reserve_scratch(Exec& exec, const Step& step, const RelativeBias& bias, Sizes sizes,
                         AttentionKind kind) const {
  exec.scratch.reset();
  exec.scratch.reserve(bytes_of(exec, step, bias, sizes, kind));
}

size_t T5::scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits, int64_t kv_len,
                         AttentionKind kind) const {
  return std::max(
      bytes_of(exec, step, decoder_bias_, {num_logits, kv_len, longest_query(step)}, kind),
      bytes_of(exec, step, encoder_bias_, {0, longest_query(step), 0}, kind));
}

T5::Buffers T5::take_scratch(Exec& exec, const Step& step, const RelativeBias& bias,
                             Sizes sizes) const {
  return take_buffers(exec, step, bias, sizes, [&](const Shape& shape, DType dtype) {
    return exec.scratch.take(shape, dtype);
  });
}

AttendArgs T5::attend_args(const Step& step, const Buffers& b) const {
  AttendArgs args;
  args.out = b.attended;
  args.q = b.q;
  args.batch = step.batch;
  args.q_start = step.q_start;
  args.q_position = step.position;
  args.compute = dtype_;
  return args;
}

void T5::norm(const Exec& exec, const TensorView& out, const TensorView& x,
              const float* weight) const {
  exec.kernels.rms_norm(exec, out, x, weight, 0, static_cast<float>(config_.layer_norm_epsilon));
}

void T5::feed_forward(const Exec& exec, const T5Layer& w, const Buffers& b) const {
  norm(exec, b.h, b.x, w.ff_norm);
  if (config_.is_gated_act) {
    linear(exec, b.h, {{b.gate, w.gate}, {b.up, w.up}}, dtype_, b.rounded);
    exec.kernels.gate_mul(exec, b.gate, b.up, config_.act);
  } else {
    linear(exec, b.h, {{b.up, w.up}}, dtype_, b.rounded);
    exec.threads.parallel_for(b.up.count(), [&](int64_t begin, int64_t end, int /*thread*/) {
      float* x = b.up.as<float>();
      for (int64_t i = begin; i < end; ++i) x[i] = std::max(x[i], 0.0f);
    });
  }
  linear(exec, config_.is_gated_act ? b.gate : b.up, {{b.x, w.down, b.x.as<float>()}}, dtype_,
         b.rounded);
}

// The step's own k and v, where they lie in the scratch: a row of the step is one block.
KVView T5::source_view(const Step& step, const Buffers& b) const {
  const int64_t head_bytes = config_.d_kv * static_cast<int64_t>(sizeof(float));
  const int64_t token_bytes = config_.num_heads * head_bytes;
  for (int32_t row = 0; row < step.batch; ++row) {
    b.offset.as<int64_t>()[row] = step.q_start[row] * token_bytes;
    b.first_position.as<int64_t>()[row] = 0;
    b.begin.as<int32_t>()[row] = 0;
    b.len.as<int32_t>()[row] = step.q_len(row);
  }
  KVView view;
  view.num_segments = 1;
  view.num_kv_heads = static_cast<int32_t>(config_.num_heads);
  view.head_dim = static_cast<int32_t>(config_.d_kv);
  KVSegment& segment = view.segment[0];
  segment.k = {reinterpret_cast<uintptr_t>(b.k.data), DType::kF32, head_bytes, token_bytes, {}};
  segment.v = {reinterpret_cast<uintptr_t>(b.v.data), DType::kF32, head_bytes, token_bytes, {}};
  segment.block_table = b.offset.as<int64_t>();
  segment.table_stride = 1;
  segment.max_len = segment.block_size = static_cast<int32_t>(longest_query(step));
  segment.first_position = b.first_position.as<int64_t>();
  segment.begin = b.begin.as<int32_t>();
  segment.len = b.len.as<int32_t>();
  return view;
}

// Leaves the encoder's output in b.h.
void T5::encode_layers(Exec& exec, const Step& step, std::span<const int32_t> ids,
                       AttentionKind kind, const Buffers& b) const {
  embed_ids(exec, weights_.embed, ids, 1, dtype_, b.x);
  AttendArgs args = attend_args(step, b);
  encoder_bias_.fill(step, longest_query(step), b.bias.as<float>(), args);
  args.kv = source_view(step, b);
  args.causal = false;
  for (const T5Layer& w : weights_.encoder.layers) {
    norm(exec, b.h, b.x, w.self.norm);
    linear(exec, b.h, {{b.q, w.self.q}, {b.k, w.self.k}, {b.v, w.self.v}}, dtype_, b.rounded);
    attend(exec, kind, args);
    linear(exec, b.attended, {{b.x, w.self.o, b.x.as<float>()}}, dtype_, b.rounded);
    feed_forward(exec, w, b);
  }
  norm(exec, b.h, b.x, weights_.encoder.final_norm);
}

TensorView T5::encoder_hidden(Exec& exec, const Step& step, std::span<const int32_t> ids,
                              AttentionKind kind) const {
  check_ids(ids, config_.vocab_size);
  const Sizes sizes{0, longest_query(step), 0};
  reserve_scratch(exec, step, encoder_bias_, sizes, kind);
  const Buffers b = take_scratch(exec, step, encoder_bias_, sizes);
  encode_layers(exec, step, ids, kind, b);
  return b.h;
}

void T5::encode(Exec& exec, const Step& step, std::span<const int32_t> ids, Cache& cache,
                AttentionKind kind) const {
  check_ids(ids, config_.vocab_size);
  for (int32_t b = 0; b < step.batch; ++b) {
    if (step.q_len(b) == 0) fail("row ", step.slot[b], " has an empty source");
    if (cache.cross(0).seq_len(step.slot[b]) > 0)
      fail("row ", step.slot[b], " has a source already; reset the cache first");
  }
  const Sizes sizes{0, longest_query(step), 0};
  reserve_scratch(exec, step, encoder_bias_, sizes, kind);
  int32_t ready = 0;
  try {
    for (; ready < cache.num_cross(); ++ready) cache.cross(ready).reserve(step);
    const Buffers b = take_scratch(exec, step, encoder_bias_, sizes);
    encode_layers(exec, step, ids, kind, b);
    for (int32_t layer = 0; layer < cache.num_cross(); ++layer) {
      const T5Attention& w = weights_.decoder.layers[static_cast<size_t>(layer)].cross;
      linear(exec, b.h, {{b.k, w.k}, {b.v, w.v}}, dtype_, b.rounded);
      cache.cross(layer).append(exec, b.k, b.v, step);
      cache.cross(layer).commit(step);
    }
  } catch (...) {
    for (int32_t layer = 0; layer < ready; ++layer) cache.cross(layer).cancel(step);
    throw;
  }
}

namespace {

// The longest source of the step's rows, each of which must have one.
int64_t longest_source(const Step& step, Cache& cache) {
  int64_t longest = 0;
  for (int32_t b = 0; b < step.batch; ++b) {
    const int64_t len = cache.cross(0).seq_len(step.slot[b]);
    if (len == 0) fail("row ", step.slot[b], " has no encoder output; encode its source first");
    longest = std::max(longest, len);
  }
  return longest;
}

}  // namespace

TensorView T5::forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                       std::span<const int32_t> logit_rows, Cache& cache,
                       AttentionKind kind) const {
  LARDER_ASSERT(ids.size() == static_cast<size_t>(step.total_q));
  check_ids(ids, config_.vocab_size);
  const Sizes sizes{static_cast<int64_t>(logit_rows.size()), kv_bound(cache, step),
                    longest_source(step, cache)};
  reserve_scratch(exec, step, decoder_bias_, sizes, kind);
  const Buffers b = take_scratch(exec, step, decoder_bias_, sizes);
  std::fill_n(b.no_queries.as<int32_t>(), step.batch + 1, 0);
  const Step read{step.batch, 0, b.no_queries.as<int32_t>(), step.position, step.slot, false};
  for (int32_t layer = 0; layer < cache.num_cross(); ++layer) cache.cross(layer).reserve(read);
  cache.begin(step);
  try {
    embed_ids(exec, weights_.embed, ids, 1, dtype_, b.x);
    decode_layers(exec, step, cache, kind, b);
    head(exec, logit_rows, b);
    return b.logits;
  } catch (...) {
    cache.cancel(step);
    throw;
  }
}

void T5::decode_layers(Exec& exec, const Step& step, Cache& cache, AttentionKind kind,
                       const Buffers& b) const {
  AttendArgs self = attend_args(step, b), cross = self;
  decoder_bias_.fill(step, kv_bound(cache, step), b.bias.as<float>(), self);
  cross.causal = false;
  const Step read{step.batch, 0, b.no_queries.as<int32_t>(), step.position, step.slot, false};
  const TensorView none = b.k.slice(0, 0, 0);
  for (int32_t index = 0; index < cache.num_layers(); ++index) {
    const T5Layer& w = weights_.decoder.layers[static_cast<size_t>(index)];
    norm(exec, b.h, b.x, w.self.norm);
    linear(exec, b.h, {{b.q, w.self.q}, {b.k, w.self.k}, {b.v, w.self.v}}, dtype_, b.rounded);
    self.kv = cache.kv(index).append(exec, b.k, b.v, step);
    attend(exec, kind, self);
    cache.kv(index).commit(step);
    linear(exec, b.attended, {{b.x, w.self.o, b.x.as<float>()}}, dtype_, b.rounded);

    norm(exec, b.h, b.x, w.cross.norm);
    linear(exec, b.h, {{b.q, w.cross.q}}, dtype_, b.rounded);
    cross.kv = cache.cross(index).append(exec, none, none, read);
    attend(exec, kind, cross);
    linear(exec, b.attended, {{b.x, w.cross.o, b.x.as<float>()}}, dtype_, b.rounded);
    feed_forward(exec, w, b);
  }
}

// A tied head sees its input scaled by 1 / sqrt(d_model).
void T5::head(const Exec& exec, std::span<const int32_t> logit_rows, const Buffers& b) const {
  if (logit_rows.empty()) return;
  gather_rows(b.last, b.x, logit_rows);
  norm(exec, b.last, b.last, weights_.decoder.final_norm);
  if (config_.tie_word_embeddings) {
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.d_model)));
    for (int64_t i = 0; i < b.last.count(); ++i) b.last.as<float>()[i] *= scale;
  }
  linear(exec, b.last, {{b.logits, {weights_.lm_head, nullptr}}}, dtype_, b.rounded);
}

}  // namespace larder
