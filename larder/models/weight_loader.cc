#include "larder/models/weight_loader.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {
namespace {

constexpr size_t kMostProblems = 40;

bool widened(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
bool usable(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64 || widened(dtype); }

}  // namespace

void check_compute_dtype(std::optional<DType> dtype) {
  if (dtype && *dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)
    fail("dtype ", dtype_name(*dtype), " cannot be computed in; use f32, bf16 or f16");
}

void WeightLoader::check() const {
  std::vector<std::string> problems;
  for (const Wanted& wanted : wanted_) {
    if (std::string problem = check_one(wanted); !problem.empty())
      problems.push_back(std::move(problem));
  }
  if (problems.empty()) return;
  const size_t count = problems.size();
  problems.resize(std::min(count, kMostProblems));
  if (count > kMostProblems) problems.push_back(str("and ", count - kMostProblems, " more"));
  fail(where_, ": ", count, " weights do not fit the config: ", join(problems, "; "));
}

std::string WeightLoader::check_one(const Wanted& wanted) const {
  const StoredTensor* stored = files_.find(wanted.name);
  if (!stored) return str(in_quotes(wanted.name), " is missing");
  if (stored->shape != wanted.shape) {
    return str(in_quotes(wanted.name), " is [", join(stored->shape, ", "), "], expected [",
               join(wanted.shape, ", "), "]");
  }
  if (!usable(stored->dtype)) {
    return str(in_quotes(wanted.name), " is ", dtype_name(stored->dtype),
               "; weights may be f32, f16, bf16 or f64");
  }
  return {};
}

void WeightLoader::load(LoadedWeights& weights, const std::string& embedding,
                        std::optional<DType> dtype, Allocator& allocator) const {
  check();
  weights.stored_dtype = files_.find(embedding)->dtype;
  const DType compute =
      dtype.value_or(weights.stored_dtype == DType::kF64 ? DType::kF32 : weights.stored_dtype);
  weights.owned.reserve(wanted_.size());
  for (const Wanted& wanted : wanted_) {
    const StoredTensor& stored = *files_.find(wanted.name);
    const TensorView view = stored.view();
    const bool in_place = wanted.matrix && (stored.dtype == compute ||
                                            (compute == DType::kF32 && widened(stored.dtype)));
    if (in_place) {
      *wanted.matrix = view;
      weights.mapped_bytes += stored.bytes;
      continue;
    }
    weights.owned.push_back(
        clone(allocator, view, wanted.matrix ? compute : DType::kF32, "weights"));
    const TensorView& copy = weights.owned.back();
    weights.converted_bytes += static_cast<size_t>(copy.byte_size());
    if (wanted.matrix) *wanted.matrix = copy;
    if (wanted.vector) *wanted.vector = copy.as<const float>();
  }
}

}  // namespace larder
