// Reading a model's weights: what it needs is listed first, checked as a whole, and then handed
// out.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "larder/models/coded_file.h"
#include "larder/models/load_options.h"
#include "larder/tensor/safetensors.h"

namespace larder {

// [out, in], as floats or as codes.
struct WeightMatrix {
  TensorView stored;  // row-major, f32, f16 or bf16, at any alignment; without data beside codes
  CodedMatrix coded;  // without data beside floats
  bool in_codes() const { return coded.data != nullptr; }
};

// Vectors are f32. An absent bias or norm is null.
struct LinearWeights {
  WeightMatrix w;
  const float* bias = nullptr;
};

// Owns the mapping and whatever had to be converted. Immutable after load.
struct LoadedWeights {
  DType stored_dtype = DType::kF32;  // of the embedding, as the file has it
  WeightFormat format = WeightFormat::kStored;
  size_t mapped_bytes = 0;     // used in place
  size_t converted_bytes = 0;  // copied through the allocator, or made into codes

  std::unique_ptr<SafetensorsFolder> files;  // null where nothing is used in place
  std::vector<Tensor> owned;
  std::vector<Buffer> codes;
  std::unique_ptr<SafetensorsFile> kept_codes;  // null where they were made
};

// Throws unless `dtype` is one that a model can compute in, or none.
void check_compute_dtype(std::optional<DType> dtype);

// Lives for the time of loading. Targets and files must outlive it.
class WeightLoader {
 public:
  WeightLoader(const SafetensorsFolder& files, std::filesystem::path folder)
      : files_(files), folder_(std::move(folder)) {}

  // An embedding or an output head.
  void matrix(const std::string& name, int64_t out, int64_t in, WeightMatrix& to) {
    wanted_.push_back({name, {out, in}, &to, nullptr, true});
  }
  // f32 values of any shape. No name: the model has no such weight.
  void vector(const std::string& name, std::vector<int64_t> shape, const float*& to) {
    if (!name.empty()) wanted_.push_back({name, std::move(shape), nullptr, &to, false});
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool bias, LinearWeights& to) {
    wanted_.push_back({name + ".weight", {out, in}, &to.w, nullptr, false});
    if (bias) vector(name + ".bias", {out}, to.bias);
  }

  // Throws one Error that lists every tensor that is missing, has another shape, or is of a type
  // that no kernel reads; then fills all targets. `embedding` is the tensor that says what is
  // stored. A matrix stays in the file when computing in f32 (it is widened on the fly) or when it
  // is stored in the dtype computed in; otherwise a converted copy is taken from `allocator` (tag
  // "weights"). With a format of codes every matrix is made into codes there, one after the other,
  // or taken from the file that keeps them.
  void load(LoadedWeights& weights, const std::string& embedding, const LoadOptions& options,
            Allocator& allocator) const;
  // What load() would take. Throws as it does.
  WeightBytes bytes(const std::string& embedding, const LoadOptions& options) const;

 private:
  struct Wanted {
    std::string name;
    std::vector<int64_t> shape;
    WeightMatrix* matrix;
    const float** vector;
    bool outer;  // an embedding or an output head
  };

  void check() const;
  std::string check_one(const Wanted& wanted) const;
  // Whether a matrix stays in the file as it is.
  static bool in_place(const Wanted& wanted, DType stored, DType compute);
  static WeightFormat format_of(const Wanted& wanted, const LoadOptions& options);
  DType compute_dtype(const std::string& embedding, const LoadOptions& options) const;
  void load_floats(LoadedWeights& weights, const Wanted& wanted, DType compute,
                   Allocator& allocator) const;
  std::vector<NamedCodes> coded_matrices(const LoadOptions& options) const;
  void use_codes(const LoadOptions& options, const std::vector<NamedCodes>& codes) const;
  void make_codes(LoadedWeights& weights, const LoadOptions& options,
                  std::vector<NamedCodes>& codes, Allocator& allocator) const;
  void load_codes(LoadedWeights& weights, const LoadOptions& options, Allocator& allocator) const;

  const SafetensorsFolder& files_;
  std::filesystem::path folder_;
  std::vector<Wanted> wanted_;
};

}  // namespace larder
