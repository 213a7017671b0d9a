#include "larder/models/relative_bias.h"

#include <algorithm>
#include <cmath>

namespace larder {

int64_t relative_bucket(int64_t distance, Direction direction, int64_t buckets,
                        int64_t max_distance) {
  int64_t first = 0, far = 0;
  if (direction == Direction::kBoth) {
    buckets /= 2;
    if (distance > 0) first = buckets;
    far = std::abs(distance);
  } else {
    far = std::max<int64_t>(-distance, 0);
  }
  const int64_t exact = buckets / 2;
  if (far < exact) return first + far;
  const float scale =
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const float octaves = std::log(static_cast<float>(far) / static_cast<float>(exact)) / scale;
  const auto large = exact + static_cast<int64_t>(octaves * static_cast<float>(buckets - exact));
  return first + std::min(large, buckets - 1);
}

RelativeBias::RelativeBias(const float* weight, int64_t buckets, int64_t num_heads,
                           int64_t max_distance, Direction direction)
    : num_heads_(num_heads), reach_(max_distance) {
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t distance = -reach_; distance <= reach_; ++distance) {
      const int64_t bucket = relative_bucket(distance, direction, buckets, max_distance);
      by_distance_.push_back(weight[bucket * num_heads + head]);
    }
  }
}

float RelativeBias::at(int64_t head, int64_t distance) const {
  const int64_t near = std::clamp(distance, -reach_, reach_);
  return by_distance_[static_cast<size_t>(head * (2 * reach_ + 1) + reach_ + near)];
}

int64_t longest_query(const Step& step) {
  int32_t most = 0;
  for (int32_t b = 0; b < step.batch; ++b) most = std::max(most, step.q_len(b));
  return most;
}

int64_t RelativeBias::floats(const Step& step, int64_t kv_len) const {
  return step.batch * num_heads_ * (longest_query(step) + kv_len);
}

// A row's table begins at its last query and key 0, the most negative distance; query i and key j
// meet at entry (last query - i) + j.
void RelativeBias::fill(const Step& step, int64_t kv_len, float* table, AttendArgs& args) const {
  const int64_t queries = longest_query(step), width = queries + kv_len;
  for (int32_t b = 0; b < step.batch; ++b) {
    if (step.q_len(b) == 0) continue;
    const int64_t last = step.position[step.q_start[b]] + queries - 1;
    const int64_t keys = step.position[step.q_start[b + 1] - 1] + 1;
    for (int64_t head = 0; head < num_heads_; ++head) {
      float* out = table + (b * num_heads_ + head) * width;
      for (int64_t i = 0; i < queries + keys - 1; ++i) out[i] = at(head, i - last);
    }
  }
  args.bias = table + queries - 1;
  args.bias_row = num_heads_ * width;
  args.bias_head = width;
  args.bias_query = -1;
}

}  // namespace larder
