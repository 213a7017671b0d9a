// One case of the conformance folder: case.json with its tensors, and how results are compared.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "larder/base/json.h"
#include "larder/tensor/safetensors.h"

namespace larder::test {

class ConformanceCase {
 public:
  explicit ConformanceCase(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Json& json() const { return json_; }
  std::string kind() const { return json_.value("kind", ""); }
  // A tensor by name; throws Error when it is not there.
  TensorView tensor(const std::string& name) const;
  // A copy as int64 (ids, masks, positions are stored so).
  std::vector<int64_t> integers(const std::string& name) const;

 private:
  std::filesystem::path folder_;
  Json json_;
  std::unique_ptr<SafetensorsFile> tensors_;
};

// Collects differences: |got - expected| <= atol + rtol * |expected|, in float32.
struct Comparison {
  double atol = 0, rtol = 0;
  double worst = 0;  // largest |got - expected| / (atol + rtol * |expected|)
  std::vector<std::string> mismatches;

  void check(const std::string& what, float got, float expected);
  void note(const std::string& what) { mismatches.push_back(what); }
};

}  // namespace larder::test
