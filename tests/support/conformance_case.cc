#include "tests/support/conformance_case.h"

#include <cmath>
#include <cstring>

#include "larder/base/error.h"
#include "larder/base/file.h"

namespace larder::test {

ConformanceCase::ConformanceCase(std::filesystem::path folder)
    : folder_(std::move(folder)),
      json_(parse_json(read_file(folder_ / "case.json"), (folder_ / "case.json").string())) {
  if (exists(folder_ / "tensors.safetensors"))
    tensors_ = std::make_unique<SafetensorsFile>(folder_ / "tensors.safetensors");
}

TensorView ConformanceCase::tensor(const std::string& name) const {
  const StoredTensor* stored = tensors_ ? tensors_->find(name) : nullptr;
  if (!stored) fail(folder_.string(), " has no tensor ", in_quotes(name));
  return stored->view();
}

std::vector<int64_t> ConformanceCase::integers(const std::string& name) const {
  const TensorView view = tensor(name);
  std::vector<int64_t> values(static_cast<size_t>(view.count()));
  copy_into(TensorView::contiguous(values.data(), DType::kI64, view.shape), view);
  return values;
}

void Comparison::check(const std::string& what, float got, float expected) {
  if (got == expected) return;  // infinities too
  const double allowed = atol + rtol * std::abs(static_cast<double>(expected));
  const double ratio = std::abs(static_cast<double>(got) - static_cast<double>(expected)) / allowed;
  if (!(ratio <= worst)) worst = ratio;
  if (!(ratio <= 1) && mismatches.size() < 20)
    note(str(what, ": got ", got, ", expected ", expected));
}

}  // namespace larder::test
