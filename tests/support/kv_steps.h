// Feeding numbered tokens to caches, and reading back what they keep.
#pragma once

#include <string>
#include <vector>

#include "larder/cache/cache.h"
#include "tests/support/machine.h"

namespace larder::test {

// Tokens to feed to a row: each is one number, which fills its K; V holds number + 0.5.
struct Feed {
  int32_t slot;
  std::vector<float> tokens;
};

// A step over `feeds` and its K and V for a layer of the given shape.
class FedStep {
 public:
  FedStep(const Cache& cache, const std::vector<Feed>& feeds, int32_t heads, int32_t head_dim,
          bool tentative = false);
  const Step& step() const { return step_; }
  const TensorView k() const { return k_.view(); }
  const TensorView v() const { return v_.view(); }

 private:
  HostAllocator host_;
  std::vector<int32_t> q_start_{0}, slot_;
  std::vector<int64_t> position_;
  Tensor k_, v_;
  Step step_;
};

// begin, then append and commit in every layer.
void feed(Cache& cache, const Exec& exec, const std::vector<Feed>& feeds, bool tentative = false);

// The numbers that a row keeps (element [head 0, token, channel 0] of K); fails the test unless all
// heads and channels and V agree with them. Values as fed (f32 caches, or numbers exact in the
// cache's dtype).
std::vector<float> kept(const Cache& cache, int32_t layer, int32_t row);

// count numbers from `first` on: first, first + 1, ...
std::vector<float> numbers(float first, int count);

// A config with which the kind keeps what `feed` gives it exactly: a quantizer's groups of one
// value are. Needs: head_dim a multiple of 4.
std::string exact_config(const std::string& kind);

}  // namespace larder::test
