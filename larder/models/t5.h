// T5ForConditionalGeneration (arXiv 1910.10683): an encoder over the source, and a decoder whose
// layers attend to themselves and to the encoder's output. No positions but the relative bias of
// self-attention; scores are not scaled.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "larder/models/model.h"
#include "larder/models/relative_bias.h"
#include "larder/models/t5_config.h"
#include "larder/models/weight_loader.h"

namespace larder {

struct T5Attention {
  const float* norm = nullptr;  // [d_model]
  LinearWeights q, k, v, o;     // [heads * d_kv, d_model], o the other way round
};

// cross: of a decoder's layer. gate: null where the feed-forward has none.
struct T5Layer {
  T5Attention self, cross;
  const float* ff_norm = nullptr;
  LinearWeights gate, up, down;  // [d_ff, d_model], down the other way round
};

struct T5Stack {
  std::vector<T5Layer> layers;
  const float* final_norm = nullptr;
  const float* bias = nullptr;  // [buckets, heads]
};

struct T5Weights : LoadedWeights {
  WeightMatrix embed, lm_head;  // [vocab, d_model], the same memory where tied
  T5Stack encoder, decoder;
};

T5Weights load_t5_weights(const std::filesystem::path& folder, const T5Config& config,
                          const LoadOptions& options, Allocator& allocator);
WeightBytes t5_weight_bytes(const std::filesystem::path& folder, const T5Config& config,
                            const LoadOptions& options);

// As every Model: immutable after load, and a row's numbers are the same bits in any company. A
// row must be encoded before its first forward().
class T5 final : public Model {
 public:
  static std::shared_ptr<const Model> load(const std::filesystem::path& folder,
                                           const LoadOptions& options, Allocator& allocator);
  static std::shared_ptr<const Model> outline(const Json& config, const std::string& what,
                                              DType dtype, WeightFormat weights);
  static WeightBytes weight_bytes(const std::filesystem::path& folder, const LoadOptions& options);
  T5(T5Config config, T5Weights weights, DType dtype);

  const T5Config& config() const { return config_; }
  const ModelInfo& info() const override { return info_; }
  DType dtype() const override { return dtype_; }
  std::vector<LayerSpec> cache_layers() const override { return t5_layer_specs(config_); }
  TensorView forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                     std::span<const int32_t> logit_rows, Cache& cache,
                     AttentionKind attention) const override;
  void encode(Exec& exec, const Step& step, std::span<const int32_t> ids, Cache& cache,
              AttentionKind attention) const override;
  size_t scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits, int64_t kv_len,
                       AttentionKind attention) const override;
  // The encoder alone: its output [total_q, d_model] f32, in exec.scratch until its next use.
  TensorView encoder_hidden(Exec& exec, const Step& step, std::span<const int32_t> ids,
                            AttentionKind attention) const;

 private:
  // How many of what a step has.
  struct Sizes {
    int64_t num_logits = 0, self_len = 0, cross_len = 0;
  };
  struct Buffers;
  template <class Take>
  Buffers take_buffers(const Exec& exec, const Step& step, const RelativeBias& bias, Sizes sizes,
                       const Take& take) const;
  size_t bytes_of(const Exec& exec, const Step& step, const RelativeBias& bias, Sizes sizes,
                  AttentionKind kind) const;
  void reserve_scratch(Exec& exec, const Step& step, const RelativeBias& bias, Sizes sizes,
                       AttentionKind kind) const;
  Buffers take_scratch(Exec& exec, const Step& step, const RelativeBias& bias, Sizes sizes) const;
  AttendArgs attend_args(const Step& step, const Buffers& b) const;
  KVView source_view(const Step& step, const Buffers& b) const;
  void encode_layers(Exec& exec, const Step& step, std::span<const int32_t> ids, AttentionKind kind,
                     const Buffers& b) const;
  void decode_layers(Exec& exec, const Step& step, Cache& cache, AttentionKind kind,
                     const Buffers& b) const;
  void feed_forward(const Exec& exec, const T5Layer& w, const Buffers& b) const;
  void norm(const Exec& exec, const TensorView& out, const TensorView& x,
            const float* weight) const;
  void head(const Exec& exec, std::span<const int32_t> logit_rows, const Buffers& b) const;

  T5Config config_;
  ModelInfo info_;
  T5Weights weights_;
  DType dtype_;
  RelativeBias encoder_bias_, decoder_bias_;
};

}  // namespace larder
