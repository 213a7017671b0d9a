// Random tokens fed to the quantized cache's own backend, and what rows keep read back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "larder/cache/kinds.h"
#include "larder/cache/registry.h"
#include "tests/support/machine.h"
#include "tests/support/random_floats.h"

namespace larder::test {

inline constexpr int32_t kHeads = 2, kDim = 16;

// What a layer keeps of a row, as f32 [heads, kept, dim].
struct Kept {
  std::vector<float> k, v;
  int64_t len = 0;
  float key(int64_t token, int64_t channel, int64_t head = 0) const {
    return k[static_cast<size_t>((head * len + token) * kDim + channel)];
  }
  float value(int64_t token, int64_t channel, int64_t head = 0) const {
    return v[static_cast<size_t>((head * len + token) * kDim + channel)];
  }
  bool same_token(const Kept& other, int64_t token) const {
    for (int64_t head = 0; head < kHeads; ++head)
      for (int64_t d = 0; d < kDim; ++d)
        if (key(token, d, head) != other.key(token, d, head) ||
            value(token, d, head) != other.value(token, d, head))
          return false;
    return true;
  }
  bool operator==(const Kept& other) const { return k == other.k && v == other.v; }
};

class LarderQuantized : public ::testing::Test {
 protected:
  Cache make(const std::string& config, Allocator& allocator, int layers = 1,
             DType dtype = DType::kF32, int64_t window = 0, int64_t rollback = 0) {
    CacheRegistry registry;
    registry.add({"own", make_larder_quantized_layers, false});
    const std::vector<LayerSpec> specs(static_cast<size_t>(layers),
                                       LayerSpec{kHeads, kDim, window});
    return registry.make("own", specs, {dtype, 0, rollback, config}, allocator);
  }
  Cache make(const std::string& config) { return make(config, host_); }

  // Token `position` of stream `stream`: what any row that follows the stream is fed.
  static std::vector<float> token(int64_t stream, int64_t position, bool value) {
    return random_floats(kHeads * kDim,
                         static_cast<uint64_t>(stream * 100000 + position * 2 + (value ? 1 : 0)));
  }

  struct Fed {
    std::vector<int32_t> q_start{0}, slot;
    std::vector<int64_t> position;
    std::vector<float> k, v;
    Step step(bool tentative) const {
      return {static_cast<int32_t>(slot.size()),
              q_start.back(),
              q_start.data(),
              position.data(),
              slot.data(),
              tentative};
    }
  };

  // counts[i] tokens for slot i of stream streams[i].
  Fed tokens_for(const Cache& cache, const std::vector<int64_t>& counts,
                 const std::vector<int64_t>& streams) const {
    Fed fed;
    for (size_t row = 0; row < counts.size(); ++row) {
      const int64_t len = cache.seq_len(static_cast<int32_t>(row));
      for (int64_t i = 0; i < counts[row]; ++i) {
        fed.position.push_back(len + i);
        const auto k = token(streams[row], len + i, false), v = token(streams[row], len + i, true);
        fed.k.insert(fed.k.end(), k.begin(), k.end());
        fed.v.insert(fed.v.end(), v.begin(), v.end());
      }
      fed.slot.push_back(static_cast<int32_t>(row));
      fed.q_start.push_back(static_cast<int32_t>(fed.position.size()));
    }
    return fed;
  }

  KVView run(Cache& cache, Fed& fed, bool tentative = false) {
    const Step step = fed.step(tentative);
    cache.begin(step);
    return put(cache, fed, step);
  }
  KVView put(Cache& cache, Fed& fed, const Step& step) {
    const Shape shape{step.total_q, kHeads, kDim};
    KVView view;
    for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
      view = cache.kv(layer).append(machine_.exec,
                                    TensorView::contiguous(fed.k.data(), DType::kF32, shape),
                                    TensorView::contiguous(fed.v.data(), DType::kF32, shape), step);
      seam_ = view.segment[0].len != nullptr ? view.segment[0].len[0] : 0;
      cache.layer(layer).commit(step);
    }
    return view;
  }
  void feed(Cache& cache, const std::vector<int64_t>& counts, std::vector<int64_t> streams = {}) {
    if (streams.empty())
      for (size_t i = 0; i < counts.size(); ++i) streams.push_back(static_cast<int64_t>(i));
    Fed fed = tokens_for(cache, counts, streams);
    run(cache, fed);
  }
  void feed_one_by_one(Cache& cache, int64_t count) {
    for (int64_t i = 0; i < count; ++i) feed(cache, {1});
  }

  Kept kept(const Cache& cache, int32_t row = 0, int32_t layer = 0) const {
    const KVLayer& kv = cache.kv(layer);
    Kept result;
    result.len = kv.kept_len(row);
    HostAllocator host;
    const Shape shape{kHeads, result.len, kDim};
    const Tensor k(host, shape, kv.dtype(), "test"), v(host, shape, kv.dtype(), "test");
    kv.read(row, k, v);
    result.k.resize(static_cast<size_t>(shape.count()));
    result.v.resize(result.k.size());
    copy_into(TensorView::contiguous(result.k.data(), DType::kF32, shape), k);
    copy_into(TensorView::contiguous(result.v.data(), DType::kF32, shape), v);
    return result;
  }
  // Whether the token is what was fed, up to the rounding of a Hadamard rotation and back.
  static bool exact(const Kept& row, int64_t index, int64_t position, int64_t stream = 0) {
    const auto k = token(stream, position, false), v = token(stream, position, true);
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t d = 0; d < kDim; ++d) {
        const auto i = static_cast<size_t>(head * kDim + d);
        if (std::fabs(row.key(index, d, head) - k[i]) > 2e-6f) return false;
        if (row.value(index, d, head) != v[i]) return false;
      }
    }
    return true;
  }

  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
  int32_t seam_ = 0;  // tokens of row 0 that the last view showed as codes
};

inline const std::vector<std::string> kConfigs = {
    R"({"residual_length": 16})",
    R"({"residual_length": 16, "keys_per_channel": false})",
    R"({"residual_length": 16, "hadamard": true, "nbits_key": 8})",
    R"({"residual_length": 16, "nbits_key": 4, "nbits_value": 2, "symmetric": true, "q_group_size": 8})",
    R"({"residual_length": 16, "nbits_key": 16, "nbits_value": 3})",
    R"({"residual_length": 0, "nbits": 8, "q_group_size": 32})",
};

}  // namespace larder::test
