// T5's relative position bias (arXiv 1910.10683): one number a head for each bucket of distances.
#pragma once

#include <cstdint>
#include <vector>

#include "larder/tensor/kernels.h"
#include "larder/tensor/step.h"

namespace larder {

enum class Direction : uint8_t { kBackward, kBoth };  // a decoder's, an encoder's

// The bucket of `distance` = key position - query position, as transformers computes it: exact
// buckets for small distances, logarithmic ones up to max_distance, in f32. kBoth: the upper half
// is for keys behind the query; kBackward: those share bucket 0.
int64_t relative_bucket(int64_t distance, Direction direction, int64_t buckets,
                        int64_t max_distance);

// Tokens of the step's longest row.
int64_t longest_query(const Step& step);

// The biases of one stack. Immutable.
class RelativeBias {
 public:
  // weight: [buckets, num_heads] f32, as files have it; read here only.
  RelativeBias(const float* weight, int64_t buckets, int64_t num_heads, int64_t max_distance,
               Direction direction);

  // Floats that fill() writes for a step whose rows have at most kv_len tokens after it.
  int64_t floats(const Step& step, int64_t kv_len) const;
  // Writes one table by distance a row and head to `table`, and sets the bias of `args` to it.
  // kv_len(b): tokens of the step's row b, the new ones included.
  void fill(const Step& step, int64_t kv_len, float* table, AttendArgs& args) const;

 private:
  float at(int64_t head, int64_t distance) const;

  int64_t num_heads_, reach_;       // distances of [-reach, reach] differ; beyond, the ends go on
  std::vector<float> by_distance_;  // [num_heads, 2 * reach + 1]
};

}  // namespace larder
