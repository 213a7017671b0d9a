// Caches of the kind quantized in every format, what their rows hold, and feeding them.
#pragma once

#include <gtest/gtest.h>

#include "larder/cache/quantized_layer.h"
#include "larder/cache/registry.h"
#include "tests/support/cache_contents.h"
#include "tests/support/machine.h"

namespace larder::test {

struct Shape3 {
  int32_t heads, head_dim, layers = 1;
};

class Quantized : public ::testing::Test {
 protected:
  Cache make(const std::string& config, const Shape3& shape, DType dtype = DType::kF32) {
    CacheOptions options;
    options.dtype = dtype;
    options.config = config;
    const std::vector<LayerSpec> specs(static_cast<size_t>(shape.layers),
                                       LayerSpec{shape.heads, shape.head_dim, 0});
    return CacheRegistry().make("quantized", specs, options, tracking_);
  }
  void feed_more(Cache& cache, int32_t row, int64_t count, uint64_t seed = 1) {
    feed_random(cache, machine_.exec, {{row, count}}, seed);
  }
  static const QuantizedLayer& layer(const Cache& cache, int32_t index = 0) {
    return dynamic_cast<const QuantizedLayer&>(cache.layer(index));
  }
  static int64_t residual(const Cache& cache, int32_t row = 0) {
    return layer(cache).row_at(row).exact_len;
  }
  static std::vector<float> values(const Cache& cache, int32_t row, int which) {
    const QuantizedLayer& at = layer(cache);
    const QuantRow& kept = at.row_at(row);
    std::vector<float> all, one(static_cast<size_t>(at.spec().head_dim));
    for (int64_t t = 0; t < kept.len(); ++t) {
      for (int32_t h = 0; h < at.spec().num_kv_heads; ++h) {
        kept.load(at.layout(), which, t, h, one.data());
        all.insert(all.end(), one.begin(), one.end());
      }
    }
    return all;
  }
  static std::vector<float> first(const std::vector<float>& all, int64_t tokens, const Shape3& s) {
    return {all.begin(), all.begin() + tokens * s.heads * s.head_dim};
  }

  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
};

// Every backend and axis, once with groups inside a token and once across tokens.
inline const std::vector<std::pair<std::string, Shape3>> kFormats = {
    {R"({"q_group_size":16,"residual_length":4})", {2, 16}},
    {R"({"q_group_size":16,"residual_length":4})", {2, 8}},
    {R"({"q_group_size":8,"nbits":2,"axis_key":-1,"axis_value":-1,"residual_length":4})", {4, 6}},
    {R"({"q_group_size":16,"axis_value":-1,"residual_length":4})", {4, 16}},
    {R"({"backend":"hqq","q_group_size":16,"residual_length":4})", {2, 16}},
    {R"({"backend":"hqq","nbits":3,"q_group_size":16,"residual_length":4})", {2, 12}},
    {R"({"backend":"hqq","nbits":1,"axis_key":0,"axis_value":0,"q_group_size":16,"residual_length":4})",
     {2, 16}},
    {R"({"backend":"hqq","nbits_key":8,"nbits_value":2,"axis_key":0,"q_group_size":16,"residual_length":4})",
     {2, 16}},
    {R"({"q_group_size":16,"append_only":true,"residual_length":4})", {2, 8}},
    {R"({"q_group_size":4,"axis_key":-1,"append_only":true,"residual_length":4})", {2, 16}},
    {R"({"backend":"hqq","q_group_size":16,"append_only":true,"residual_length":4})", {2, 16}},
};

}  // namespace larder::test
