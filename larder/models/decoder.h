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
#include "larder/models/weights.h"

namespace larder {

// Immutable after load, so any number of generations, each with its own Exec and Cache, may run on
// one at once.
class Decoder {
 public:
  // Reads config.json and the safetensors of a Hugging Face folder. `dtype` f32, bf16 or f16: what
  // the inputs of a matmul are rounded to (sums are f32 always); nullopt = as the file stores them.
  // `allocator` must outlive the decoder.
  static std::shared_ptr<const Decoder> load(const std::filesystem::path& folder,
                                             std::optional<DType> dtype, Allocator& allocator);
  Decoder(DecoderConfig config, DecoderWeights weights, DType dtype);

  const DecoderConfig& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  DType dtype() const { return dtype_; }
  std::vector<LayerSpec> cache_layers() const;

  // Runs the step: ids [step.total_q]. Gives logits [logit_rows.size(), vocab_size] f32 of the
  // tokens that logit_rows names (indices into the step's tokens), in exec.scratch until its next
  // use. On an error (an id outside the vocabulary, no room in the cache, out of memory) nothing
  // has changed.
  TensorView forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                     std::span<const int32_t> logit_rows, Cache& cache,
                     AttentionKind attention) const;

  // What forward() takes from the scratch arena for a step like this one. The KV length is the
  // longest row after it.
  size_t scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits, int64_t kv_len,
                       AttentionKind attention) const;

 private:
  struct Buffers;
  struct Product;
  template <class Take>
  Buffers take_buffers(const Exec& exec, int64_t tokens, int64_t num_logits,
                       const Take& take) const;
  void embed(const Exec& exec, std::span<const int32_t> ids, const TensorView& x) const;
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
  DecoderWeights weights_;
  DType dtype_;
  std::vector<double>
      inv_freq_;  // empty for the dynamic rope type, whose table follows the row's length
};

}  // namespace larder
