// A model that watches its own logits: those behind the same tokens must always be the same bytes.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "larder/models/model.h"

namespace larder::test {

// Passes everything on to `model`. Rows are recognised by what they were fed from position 0 on, so
// a row that began as a copy of another, or had guesses, is passed over from there on. For one
// thread.
class LogitsSpy final : public Model {
 public:
  explicit LogitsSpy(std::shared_ptr<const Model> model) : model_(std::move(model)) {}

  const ModelInfo& info() const override { return model_->info(); }
  DType dtype() const override { return model_->dtype(); }
  std::vector<LayerSpec> cache_layers() const override { return model_->cache_layers(); }
  TensorView forward(Exec& exec, const Step& step, std::span<const int32_t> ids,
                     std::span<const int32_t> logit_rows, Cache& cache,
                     AttentionKind attention) const override;
  size_t scratch_bytes(const Exec& exec, const Step& step, int64_t num_logits, int64_t kv_len,
                       AttentionKind attention) const override {
    return model_->scratch_bytes(exec, step, num_logits, kv_len, attention);
  }

  int64_t compared() const { return compared_; }    // logits rows that had been seen before
  int64_t different() const { return different_; }  // and those of them that were others

 private:
  using Ids = std::vector<int32_t>;
  void look(const Ids& history, std::span<const float> logits) const;

  std::shared_ptr<const Model> model_;
  mutable std::map<const Cache*, std::map<int32_t, Ids>> histories_;
  mutable std::map<Ids, std::vector<float>> seen_;
  mutable int64_t compared_ = 0, different_ = 0;
};

}  // namespace larder::test
