// Reading a model's weights: what it needs is listed first, checked as a whole, and then handed
// out.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "larder/tensor/safetensors.h"

namespace larder {

// Matrices are [out, in], row-major, f32, f16 or bf16, at any alignment. Vectors are f32. An absent
// bias or norm is null.
struct LinearWeights {
  TensorView w;
  const float* bias = nullptr;
};

// Owns the mapping and whatever had to be converted. Immutable after load.
struct LoadedWeights {
  DType stored_dtype = DType::kF32;  // of the embedding, as the file has it
  size_t mapped_bytes = 0;           // used in place
  size_t converted_bytes = 0;        // copied through the allocator

  std::unique_ptr<SafetensorsFolder> files;
  std::vector<Tensor> owned;
};

// Throws unless `dtype` is one that a model can compute in, or none.
void check_compute_dtype(std::optional<DType> dtype);

// Lives for the time of loading. Targets and files must outlive it.
class WeightLoader {
 public:
  WeightLoader(const SafetensorsFolder& files, std::string where)
      : files_(files), where_(std::move(where)) {}

  void matrix(const std::string& name, int64_t out, int64_t in, TensorView& to) {
    wanted_.push_back({name, {out, in}, &to, nullptr});
  }
  // f32 values of any shape. No name: the model has no such weight.
  void vector(const std::string& name, std::vector<int64_t> shape, const float*& to) {
    if (!name.empty()) wanted_.push_back({name, std::move(shape), nullptr, &to});
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool bias, LinearWeights& to) {
    matrix(name + ".weight", out, in, to.w);
    if (bias) vector(name + ".bias", {out}, to.bias);
  }

  // Throws one Error that lists every tensor that is missing, has another shape, or is of a type
  // that no kernel reads; then fills all targets. `embedding` is the tensor that says what is
  // stored. A matrix stays in the file when computing in f32 (it is widened on the fly) or when it
  // is stored in the dtype computed in; otherwise a converted copy is taken from `allocator` (tag
  // "weights").
  void load(LoadedWeights& weights, const std::string& embedding, std::optional<DType> dtype,
            Allocator& allocator) const;

 private:
  struct Wanted {
    std::string name;
    std::vector<int64_t> shape;
    TensorView* matrix;
    const float** vector;
  };

  void check() const;
  std::string check_one(const Wanted& wanted) const;

  const SafetensorsFolder& files_;
  std::string where_;
  std::vector<Wanted> wanted_;
};

}  // namespace larder
