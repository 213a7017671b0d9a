// One decoder for every family that is a stack of attention and gated-MLP layers: what differs
// between them is data in DecoderConfig.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "larder/attention/attention.h"
#include "larder/cache/cache.h"
#include "larder/models/decoder_config.h"
#include "larder/models/layers.h"
#include "larder/models/model.h"
#include "larder/models/weights.h"

namespace larder {

class Decoder final : public Model {
 public:
  // As Model::load, for the families of family.h.
  static std::shared_ptr<const Decoder> load(const std::filesystem::path& folder,
                                             const LoadOptions& options, Allocator& allocator);
  static std::shared_ptr<const Decoder> outline(DecoderConfig config, DType dtype,
                                                WeightFormat weights);
  static WeightBytes weight_bytes(const std::filesystem::path& folder, const LoadOptions& options);
  Decoder(DecoderConfig config, DecoderWeights weights, DType dtype);

  const DecoderConfig& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  const ModelInfo& info() const override { return info_; }
  DType dtype() const override { return dtype_; }
  std::vector<LayerSpec> cache_layers() const override;
  std::optional<std::vector<float>> key_rotation(int64_t layer, int64_t positions) const override;
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
  void rope_tables(const Step& step, const TensorView& cos_sin) const;
  AttendArgs attend_args(const Step& step, int64_t layer, const Buffers& b) const;
  void attention(Exec& exec, const Step& step, int64_t layer, Cache& cache, AttentionKind kind,
                 const Buffers& b) const;
  void mlp(const Exec& exec, const LayerWeights& w, const Buffers& b) const;
  void linear(const Exec& exec, const TensorView& x, std::initializer_list<Product> products,
              const Buffers& b) const;
  void add_block(const Exec& exec, const TensorView& input, const LinearWeights& last,
                 const float* post_norm, const Buffers& b) const;
  void norm(const Exec& exec, const TensorView& out, const TensorView& x,
            const float* weight) const;
  void head(const Exec& exec, std::span<const int32_t> logit_rows, const Buffers& b) const;

  DecoderConfig config_;
  ModelInfo info_;
  DecoderWeights weights_;
  DType dtype_;
  // The first layer of each type that there is: others of the type need the same scratch.
  std::vector<int64_t> first_of_type_;
  std::vector<double>
      inv_freq_;  // empty for the dynamic rope type, whose table follows the row's length
};

}  // namespace larder
