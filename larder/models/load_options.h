// What a model's weights become when they are loaded.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "larder/tensor/coded_matrix.h"
#include "larder/tensor/dtype.h"

namespace larder {

struct LoadOptions {
  // f32, bf16 or f16: what the inputs of a matmul are rounded to (sums are f32 always); nullopt =
  // as the file stores them. Beside codes, inputs become codes too, straight from f32.
  std::optional<DType> dtype = {};
  // Of all matrices but embedding and output head, which kInt4 makes int8.
  WeightFormat weights = WeightFormat::kStored;
  int threads = 0;  // that make the codes; 0 = the cores this process may use
  // Codes are kept in a file in the model's folder: mapped where it is there and fits, else made
  // and written. What went wrong with the file is told to `note`, in one line, and loading goes on.
  bool keep_codes = false;
  std::function<void(const std::string&)> note = {};
};

// What loading takes.
struct WeightBytes {
  size_t mapped = 0;     // of the file, used in place
  size_t converted = 0;  // from the allocator
};

}  // namespace larder
