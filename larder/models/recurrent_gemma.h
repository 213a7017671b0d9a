// RecurrentGemmaForCausalLM (Griffin, arXiv 2402.19427): layers of a gated linear recurrence or of
// attention over a window, each followed by a gated MLP.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "larder/models/model.h"
#include "larder/models/recurrent_gemma_config.h"
#include "larder/models/weight_loader.h"

namespace larder {

// One layer; of the recurrent and the attention block only its own is filled.
struct RecurrentGemmaLayer {
  const float *temporal_norm = nullptr, *channel_norm = nullptr;  // [hidden]
  LinearWeights gate, up, down;                                   // [intermediate / 2, hidden], ...
  // Recurrent block.
  LinearWeights linear_x, linear_y, linear_out;  // [lru, hidden], out the other way round
  const float *conv_weight = nullptr, *conv_bias = nullptr;  // [lru, 1, width], [lru]
  TensorView input_gate, decay_gate;  // [heads, lru / heads, lru / heads]: [head, out, in]
  const float *input_bias = nullptr, *decay_bias = nullptr;  // [heads, lru / heads]
  const float* rate = nullptr;                               // [lru]: softplus(recurrent_param)
  // Attention block.
  LinearWeights q, k, v, o;
};

struct RecurrentGemmaWeights : LoadedWeights {
  WeightMatrix embed, lm_head;  // [vocab, hidden], the same memory where tied
  const float* final_norm = nullptr;
  std::vector<RecurrentGemmaLayer> layers;
};

RecurrentGemmaWeights load_recurrent_gemma_weights(const std::filesystem::path& folder,
                                                   const RecurrentGemmaConfig& config,
                                                   const LoadOptions& options,
                                                   Allocator& allocator);
WeightBytes recurrent_gemma_weight_bytes(const std::filesystem::path& folder,
                                         const RecurrentGemmaConfig& config,
                                         const LoadOptions& options);

// As every Model: immutable after load, and a row's logits are the same bits in any company.
class RecurrentGemma final : public Model {
 public:
  static std::shared_ptr<const Model> load(const std::filesystem::path& folder,
                                           const LoadOptions& options, Allocator& allocator);
  static std::shared_ptr<const Model> outline(const Json& config, const std::string& what,
                                              DType dtype, WeightFormat weights);
  static WeightBytes weight_bytes(const std::filesystem::path& folder, const LoadOptions& options);
  RecurrentGemma(RecurrentGemmaConfig config, RecurrentGemmaWeights weights, DType dtype);

  const RecurrentGemmaConfig& config() const { return config_; }
  const ModelInfo& info() const override { return info_; }
  DType dtype() const override { return dtype_; }
  std::vector<LayerSpec> cache_layers() const override;
  TensorView forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                     std::span<const int32_t> logit_rows, Cache& cache,
                     AttentionKind attention) const override;
  size_t scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits, int64_t kv_len,
                       AttentionKind attention) const override;

 private:
  struct Buffers;
  template <class Take>
  Buffers take_buffers(const Exec& exec, int64_t tokens, int64_t num_logits,
                       const Take& take) const;
  AttendArgs attend_args(const Step& step, const Buffers& b) const;
  void attention(Exec& exec, const Step& step, int64_t index, Cache& cache, AttentionKind kind,
                 const Buffers& b) const;
  void recurrence(const Exec& exec, const Step& step, int64_t index, Cache& cache,
                  const Buffers& b) const;
  void gates(const Exec& exec, const RecurrentGemmaLayer& w, const Buffers& b) const;
  void mlp(const Exec& exec, const RecurrentGemmaLayer& w, const Buffers& b) const;
  void norm(const Exec& exec, const TensorView& out, const TensorView& x,
            const float* weight) const;
  void head(const Exec& exec, std::span<const int32_t> logit_rows, const Buffers& b) const;

  RecurrentGemmaConfig config_;
  ModelInfo info_;
  RecurrentGemmaWeights weights_;
  DType dtype_;
  std::vector<double> inv_freq_;
};

}  // namespace larder
