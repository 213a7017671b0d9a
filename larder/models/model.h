// What generation and tools need of a model, whatever its architecture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "larder/attention/attention.h"
#include "larder/base/json_fwd.h"
#include "larder/cache/cache.h"
#include "larder/models/load_options.h"

namespace larder {

// Field names are config.json's.
struct ModelInfo {
  std::string architecture, model_type;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  // INT64_MAX where a model has no limit (Mamba, T5)
  std::optional<int64_t> bos_token_id, pad_token_id, decoder_start_token_id;
  std::vector<int64_t> eos_token_ids;
  bool is_encoder_decoder = false;
  int64_t num_parameters = 0;  // a tied head counted once
  size_t mapped_weight_bytes = 0, converted_weight_bytes = 0;
  WeightFormat weights = WeightFormat::kStored;
};

// Immutable after load, so any number of generations, each with its own Exec and Cache, may run on
// one at once.
class Model {
 public:
  virtual ~Model() = default;
  // Reads config.json and the safetensors of a Hugging Face folder; the architecture decides which
  // class. `allocator` must outlive the model.
  static std::shared_ptr<const Model> load(const std::filesystem::path& folder,
                                           const LoadOptions& options, Allocator& allocator);
  static std::shared_ptr<const Model> load(const std::filesystem::path& folder,
                                           std::optional<DType> dtype, Allocator& allocator);

  // The same without weights, from config.json's text alone: only sizes may be asked,
  // cache_layers() and scratch_bytes(). `what` begins error lines.
  static std::shared_ptr<const Model> outline(const Json& config, const std::string& what,
                                              DType dtype,
                                              WeightFormat weights = WeightFormat::kStored);
  // What load() would take, to the byte, from config.json and the headers of the safetensors.
  static WeightBytes weight_bytes(const std::filesystem::path& folder, const LoadOptions& options);

  virtual const ModelInfo& info() const = 0;
  virtual DType dtype() const = 0;
  // One spec a layer of the decoder in its order, and after those one a cross layer.
  virtual std::vector<LayerSpec> cache_layers() const = 0;

  // Runs the step: ids [step.total_q]. Gives logits [logit_rows.size(), vocab_size] f32 of the
  // tokens that logit_rows names (indices into the step's tokens), in exec.scratch until its next
  // use. On an error (an id outside the vocabulary, no room in the cache, out of memory) nothing
  // has changed.
  virtual TensorView forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                             std::span<const int32_t> logit_rows, Cache& cache,
                             AttentionKind attention) const = 0;

  // What forward() takes from exec.scratch for a step like this one, whatever its positions, or for
  // encoder-decoder models encode(), where that is more. kv_len: of the longest row after the step.
  virtual size_t scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits,
                               int64_t kv_len, AttentionKind attention) const = 0;

  // Encoder-decoder models: runs the encoder over the rows of `step` (positions from 0; rows of
  // different lengths, no padding) and fills the cross layers of the cache rows slot[b], which must
  // be new. Others refuse.
  virtual void encode(Exec& exec, const Step& step, std::span<const int32_t> ids, Cache& cache,
                      AttentionKind attention) const;

  // cos and sin, [2, half], of the angles by which layer `layer` turns its keys over `positions`
  // positions, without any scaling: what a context shift needs. nullopt where keys cannot be moved
  // (no rope, or a rope whose angles depend on the length).
  virtual std::optional<std::vector<float>> key_rotation(int64_t layer, int64_t positions) const;
};

// How an architecture that is not a plain decoder is loaded (decoders: family.h).
struct Architecture {
  const char* name;        // as config.json's `architectures` has it
  const char* model_type;  // as config.json's `model_type` has it
  std::shared_ptr<const Model> (*load)(const std::filesystem::path& folder,
                                       const LoadOptions& options, Allocator& allocator);
  std::shared_ptr<const Model> (*outline)(const Json& config, const std::string& what, DType dtype,
                                          WeightFormat weights);
  WeightBytes (*weight_bytes)(const std::filesystem::path& folder, const LoadOptions& options);
};
std::span<const Architecture> architectures();

}  // namespace larder
