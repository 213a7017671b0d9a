// What a cache format's rounding changes in each head of each layer.
#pragma once

#include <vector>

#include "larder/generate/kv_quality.h"
#include "larder/tensor/kernels.h"

namespace larder {

// A kernel set that also keeps what attention was asked. Must outlive the forwards with it.
class WatchedKernels final : public Kernels {
 public:
  struct Asked {
    AttendArgs args;  // without the pointers of its step
    Tensor q;
    std::vector<int64_t> position;
  };
  WatchedKernels(const Kernels& own, Allocator& allocator);
  const std::vector<Asked>& asked() const { return asked_; }

 private:
  static void watch(const Exec& exec, const AttendArgs& args);

  const Kernels& own_;
  Allocator& allocator_;
  mutable std::vector<Asked> asked_;
};

// Converts what the exact cache holds of row 0 to the format, layer by layer, and looks at the
// difference: of keys, values, and attention's answers to what `queries` was asked, fused, by that
// row in whole forwards.
std::vector<HeadError> head_errors(Session& exact, const WatchedKernels& queries,
                                   const CacheFormat& format, Allocator& allocator);

}  // namespace larder
