#include "larder/models/scratch_plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/models/decoder.h"
#include "larder/models/kv_plan.h"
#include "larder/tensor/kernels.h"

namespace larder {
namespace {

constexpr int64_t kChunk = 512;       // prompt tokens a step
constexpr int64_t kKVLenStep = 4096;  // models round the length of a growing cache up to it
constexpr int64_t kMostSplit = 8;     // queries a row up to which attention may cut rows by spans

// A decoder of the sizes that most files name in common words; null where they do not.
std::shared_ptr<const Model> generic_outline(const Json& config, const std::string& what,
                                             DType dtype, WeightFormat weights) {
  const JsonFields fields(config, what);
  const auto first = [&](std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys)
      if (const auto value = fields.integer(key)) return std::clamp<int64_t>(*value, 0, INT32_MAX);
    return int64_t{0};
  };
  const KVPlanConfig kv = read_kv_plan_config(config, what);
  DecoderConfig c;
  c.vocab_size = first({"vocab_size"});
  c.hidden_size = first({"hidden_size", "d_model", "n_embd"});
  c.intermediate_size =
      first({"intermediate_size", "d_ff", "ffn_dim", "n_inner", "ffn_hidden_size"});
  c.num_attention_heads = first({"num_attention_heads", "num_heads", "n_head"});
  c.num_key_value_heads = kv.num_kv_heads;
  c.head_dim = c.rope.dim = kv.head_dim;
  c.rope.type = RopeType::kDynamic;  // without a table of its own
  c.layer_types = {LayerType::kFullAttention};
  if (std::min({c.vocab_size, c.hidden_size, c.intermediate_size, c.num_attention_heads,
                c.num_key_value_heads, c.head_dim}) < 1)
    return nullptr;
  return Decoder::outline(std::move(c), dtype, weights);
}

std::shared_ptr<const Model> outline(const Json& config, const std::string& what, DType dtype,
                                     WeightFormat weights) {
  try {
    return Model::outline(config, what, dtype, weights);
  } catch (const Error&) {
    const Json* text = JsonFields(config, what).object("text_config");
    return generic_outline(text != nullptr ? *text : config, what, dtype, weights);
  }
}

// A step of rows with so many tokens each.
class Rows {
 public:
  explicit Rows(const std::vector<int64_t>& counts)
      : q_start_(counts.size() + 1), slot_(counts.size()) {
    for (size_t i = 0; i < counts.size(); ++i)
      q_start_[i + 1] = q_start_[i] + static_cast<int32_t>(counts[i]);
    position_.resize(static_cast<size_t>(q_start_.back()));
    std::iota(slot_.begin(), slot_.end(), 0);
  }
  Step step() const {
    return {static_cast<int32_t>(slot_.size()),
            q_start_.back(),
            q_start_.data(),
            position_.data(),
            slot_.data(),
            false};
  }

 private:
  std::vector<int32_t> q_start_, slot_;
  std::vector<int64_t> position_;
};

// The steps that need the most: a chunk of prompts, the end of prompts in few tokens a row, a token
// of every row.
std::vector<Rows> steps_of(const ScratchLoad& load) {
  // A chunk may begin and end within a row.
  int64_t left = std::min(kChunk, checked_mul(load.batch, load.tokens));
  const int64_t rows = std::min({load.batch, kChunk / load.tokens + 2, left});
  std::vector<int64_t> prompts;
  for (int64_t behind = rows - 1; behind >= 0; --behind) {
    prompts.push_back(std::min(load.tokens, left - behind));
    left -= prompts.back();
  }
  const int64_t few = std::min(kMostSplit, load.tokens);
  return {Rows(prompts),
          Rows(std::vector<int64_t>(static_cast<size_t>(std::min(load.batch, kChunk / few)), few)),
          Rows(std::vector<int64_t>(static_cast<size_t>(load.batch), 1))};
}

}  // namespace

std::optional<int64_t> planned_scratch_bytes(const Json& config, const std::string& what,
                                             const ScratchLoad& load) {
  LARDER_ASSERT(load.batch > 0 && load.tokens > 0);
  HostAllocator host;
  ThreadPool threads(load.threads);
  Arena arena(host);
  const std::vector<Rows> steps = steps_of(load);
  const int64_t kv_len =
      std::min<int64_t>(ceil_div(load.tokens, kKVLenStep) * kKVLenStep, INT32_MAX);
  size_t most = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto model = outline(config, what, dtype, load.weights);
    if (!model) return std::nullopt;
    for (const Kernels* kernels : available_kernel_sets()) {
      const Exec exec{*kernels, threads, arena};
      for (const Rows& rows : steps) {
        const Step step = rows.step();
        most = std::max(
            most, model->scratch_bytes(exec, step, step.batch, kv_len, AttentionKind::kFused));
      }
    }
  }
  return static_cast<int64_t>(most);
}

}  // namespace larder
