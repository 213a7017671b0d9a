#include "larder/generate/head_errors.h"

#include <cmath>

#include "larder/base/error.h"
#include "larder/cache/rows.h"

namespace larder {

WatchedKernels::WatchedKernels(const Kernels& own, Allocator& allocator)
    : Kernels(own), own_(own), allocator_(allocator) {
  attend = &WatchedKernels::watch;
}

void WatchedKernels::watch(const Exec& exec, const AttendArgs& args) {
  const auto& self = static_cast<const WatchedKernels&>(exec.kernels);
  LARDER_ASSERT(args.batch == 1 && args.bias == nullptr && args.key_mask == nullptr);
  Asked asked{args, Tensor(self.allocator_, args.q.shape, DType::kF32, "export"), {}};
  copy_into(asked.q, args.q);
  asked.position.assign(args.q_position, args.q_position + args.q.shape[0]);
  self.asked_.push_back(std::move(asked));
  self.own_.attend(exec, args);
}

namespace {

// sqrt(sum of squared errors / sum of squares), taken in part by part.
class RelativeError {
 public:
  void add(const float* exact, const float* rounded, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      error_ += (double{exact[i]} - rounded[i]) * (double{exact[i]} - rounded[i]);
      total_ += double{exact[i]} * exact[i];
    }
  }
  double value() const { return total_ > 0 ? std::sqrt(error_ / total_) : 0; }

 private:
  double error_ = 0, total_ = 0;
};

double error_of_head(const TensorView& exact, const TensorView& rounded, int32_t head) {
  const int64_t count = exact.shape[1] * exact.shape[2];
  RelativeError error;
  error.add(exact.as<float>() + head * count, rounded.as<float>() + head * count, count);
  return error.value();
}

// What attention over all that row 0 of the layer holds answers.
Tensor answers(Session& session, KVLayer& layer, const WatchedKernels::Asked& asked,
               Allocator& allocator) {
  const LayerSpec& spec = layer.spec();
  const int32_t none[] = {0, 0}, slot = 0;
  const Step step{1, 0, none, nullptr, &slot, false};
  const Tensor no_tokens(allocator, {0, spec.num_kv_heads, spec.head_dim}, DType::kF32, "export");
  Tensor q(allocator, asked.q.view().shape, DType::kF32, "export");  // attend() may turn it
  Tensor out(allocator, asked.q.view().shape, DType::kF32, "export");
  copy_into(q, asked.q);
  layer.reserve(step);
  const int32_t q_start[] = {0, static_cast<int32_t>(asked.q.view().shape[0])};
  AttendArgs args = asked.args;
  args.out = out;
  args.q = q;
  args.q_start = q_start;
  args.q_position = asked.position.data();
  args.kv = layer.append(session.exec(), no_tokens, no_tokens, step);
  args.lse = nullptr;
  session.exec().scratch.reset();
  session.exec().scratch.reserve(attend_scratch_bytes(session.exec(), AttentionKind::kFused, args));
  attend(session.exec(), AttentionKind::kFused, args);
  return out;
}

// Of the queries that share a head of keys and values.
class AnswerErrors {
 public:
  explicit AnswerErrors(int32_t kv_heads) : of_head_(static_cast<size_t>(kv_heads)) {}
  void add(const TensorView& exact, const TensorView& rounded) {
    const int64_t heads = exact.shape[1], dim = exact.shape[2];
    const int64_t each = heads / static_cast<int64_t>(of_head_.size());
    for (int64_t i = 0; i < exact.shape[0] * heads; ++i)
      of_head_[static_cast<size_t>(i % heads / each)].add(exact.as<float>() + i * dim,
                                                          rounded.as<float>() + i * dim, dim);
  }
  double operator[](int32_t head) const { return of_head_[static_cast<size_t>(head)].value(); }

 private:
  std::vector<RelativeError> of_head_;
};

// Row 0 of `from`, as `to` keeps it.
void convert(const KVLayer& from, const TokenTensors& tokens, KVLayer& to) {
  const RowTokens row{from.seq_len(0) - from.kept_len(0), tokens.k, tokens.v};
  to.assign(std::span(&row, 1))->apply();
}

}  // namespace

std::vector<HeadError> head_errors(Session& exact, const WatchedKernels& queries,
                                   const CacheFormat& format, Allocator& allocator) {
  std::vector<HeadError> errors;
  Cache converted =
      CacheRegistry().make(format.cache, exact.model().cache_layers(),
                           {DType::kF32, exact.cache().seq_len(0), 0, format.config}, allocator);
  std::vector<int32_t> layers;  // those with attention
  for (int32_t i = 0; i < exact.cache().num_layers(); ++i)
    if (exact.cache().layer(i).as_kv() != nullptr) layers.push_back(i);
  LARDER_ASSERT(layers.empty() || queries.asked().size() % layers.size() == 0);
  for (size_t at = 0; at < layers.size(); ++at) {
    KVLayer &from = exact.cache().kv(layers[at]), &to = converted.kv(layers[at]);
    const TokenTensors tokens = read_tokens(from, 0, allocator, "export");
    convert(from, tokens, to);
    const TokenTensors left = read_tokens(to, 0, allocator, "export");
    const auto same = [&](const Tensor& side) {
      Tensor tensor(allocator, left.k.view().shape, DType::kF32, "export");
      copy_into(tensor, side.view().slice(1, from.kept_len(0) - to.kept_len(0), from.kept_len(0)));
      return tensor;
    };
    const Tensor k = same(tokens.k), v = same(tokens.v);
    AnswerErrors output(from.spec().num_kv_heads);
    for (size_t i = at; i < queries.asked().size(); i += layers.size())
      output.add(answers(exact, from, queries.asked()[i], allocator),
                 answers(exact, to, queries.asked()[i], allocator));
    for (int32_t head = 0; head < from.spec().num_kv_heads; ++head)
      errors.push_back({layers[at], head, error_of_head(k, left.k, head),
                        error_of_head(v, left.v, head), output[head]});
  }
  return errors;
}

}  // namespace larder
