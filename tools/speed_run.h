// Feeding a session with tokens to measure its speed, and the statistics of such runs.
#pragma once

#include <cstdint>
#include <vector>

#include "larder/generate/session.h"

namespace larder::tools {

// One row, any ids: speed does not depend on them, and they are the same at every run. Borrows the
// session. Every call gives false when the user interrupted it.
class SpeedRun {
 public:
  static constexpr int64_t kChunk = 512;  // prompt tokens a step

  explicit SpeedRun(Session& session);  // refuses a model with an encoder

  // Brings the cache to `length` tokens: cuts it where its kind can, or starts anew.
  bool set_depth(int64_t length);
  // `count` tokens in steps of at most `chunk`, no longer than the cache's step_limit(), with
  // logits of the last one, or of every token when they are fed one by one.
  bool feed(int64_t count, int64_t chunk);

 private:
  void cut(int64_t length);

  Session& session_;
  int64_t vocab_;
  std::vector<int32_t> ids_;
  std::vector<int64_t> position_;
};

// The ids that speeds are measured with: spread over the vocabulary.
int32_t some_id(int64_t i, int64_t vocab);

double median(std::vector<double> values);
double deviation(const std::vector<double>& values);  // of a sample; 0 for fewer than two

}  // namespace larder::tools
