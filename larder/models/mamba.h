// MambaForCausalLM (arXiv 2312.00752): layers of a gated causal convolution and a selective scan,
// no attention and no positions.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "larder/models/mamba_config.h"
#include "larder/models/model.h"
#include "larder/models/weight_loader.h"

namespace larder {

struct MambaLayerWeights {
  const float* norm = nullptr;         // [hidden]
  LinearWeights in_proj, out_proj;     // [2 * inner, hidden], [hidden, inner]
  LinearWeights x_proj, dt_proj;       // [rank + 2 * states, inner], [inner, rank]
  const float* conv_weight = nullptr;  // [inner, 1, kernel]
  const float* conv_bias = nullptr;    // [inner]
  const float* a = nullptr;            // [inner, states]: -exp(A_log)
  const float* skip = nullptr;         // [inner]
};

struct MambaWeights : LoadedWeights {
  WeightMatrix embed, lm_head;  // [vocab, hidden], the same memory where tied
  const float* final_norm = nullptr;
  std::vector<MambaLayerWeights> layers;
};

// As every Model: immutable after load. The kernel set's matmul decides the order of its sums, and
// scans run in the order of positions, so a row's logits are the same bits in any company.
class Mamba final : public Model {
 public:
  static std::shared_ptr<const Model> load(const std::filesystem::path& folder,
                                           const LoadOptions& options, Allocator& allocator);
  static std::shared_ptr<const Model> outline(const Json& config, const std::string& what,
                                              DType dtype, WeightFormat weights);
  static WeightBytes weight_bytes(const std::filesystem::path& folder, const LoadOptions& options);
  Mamba(MambaConfig config, MambaWeights weights, DType dtype);

  const MambaConfig& config() const { return config_; }
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
  void layer(const Exec& exec, const Step& step, int64_t index, Cache& cache,
             const Buffers& b) const;
  void head(const Exec& exec, std::span<const int32_t> logit_rows, const Buffers& b) const;

  MambaConfig config_;
  ModelInfo info_;
  MambaWeights weights_;
  DType dtype_;
};

}  // namespace larder
