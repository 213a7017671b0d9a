#include "tests/support/kv_steps.h"

#include <gtest/gtest.h>

#include <numeric>

namespace larder::test {

FedStep::FedStep(const Cache& cache, const std::vector<Feed>& feeds, int32_t heads,
                 int32_t head_dim, bool tentative) {
  std::vector<float> all;
  for (const Feed& feed : feeds) {
    for (size_t i = 0; i < feed.tokens.size(); ++i) {
      position_.push_back(cache.seq_len(feed.slot) + static_cast<int64_t>(i));
      all.push_back(feed.tokens[i]);
    }
    slot_.push_back(feed.slot);
    q_start_.push_back(static_cast<int32_t>(position_.size()));
  }
  const auto total = static_cast<int64_t>(all.size());
  k_ = Tensor(host_, {total, heads, head_dim}, DType::kF32, "test");
  v_ = Tensor(host_, {total, heads, head_dim}, DType::kF32, "test");
  const int64_t floats = int64_t{heads} * head_dim;
  for (int64_t i = 0; i < total * floats; ++i) {
    const float token = all[static_cast<size_t>(i / floats)];
    k_.as<float>()[i] = token;
    v_.as<float>()[i] = token + 0.5f;
  }
  step_ = {static_cast<int32_t>(slot_.size()),
           q_start_.back(),
           q_start_.data(),
           position_.data(),
           slot_.data(),
           tentative};
}

void feed(Cache& cache, const Exec& exec, const std::vector<Feed>& feeds, bool tentative) {
  const LayerSpec& spec = cache.layer(0).spec();
  const FedStep fed(cache, feeds, spec.num_kv_heads, spec.head_dim, tentative);
  cache.begin(fed.step());
  for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    cache.kv(layer).append(exec, fed.k(), fed.v(), fed.step());
    cache.layer(layer).commit(fed.step());
  }
}

std::vector<float> kept(const Cache& cache, int32_t layer_index, int32_t row) {
  HostAllocator host;
  const KVLayer& layer = cache.kv(layer_index);
  const LayerSpec& spec = layer.spec();
  const int64_t len = layer.kept_len(row);
  const Tensor k(host, {spec.num_kv_heads, len, spec.head_dim}, layer.dtype(), "test");
  const Tensor v(host, {spec.num_kv_heads, len, spec.head_dim}, layer.dtype(), "test");
  layer.read(row, k, v);
  const Tensor k32 = clone(host, k, DType::kF32, "test"), v32 = clone(host, v, DType::kF32, "test");
  std::vector<float> result;
  for (int64_t i = 0; i < len; ++i) {
    const float token = k32.as<float>()[i * spec.head_dim];
    result.push_back(token);
    for (int64_t j = 0; j < int64_t{spec.num_kv_heads} * spec.head_dim; ++j) {
      const int64_t at = (j / spec.head_dim * len + i) * spec.head_dim + j % spec.head_dim;
      EXPECT_EQ(k32.as<float>()[at], token)
          << "layer " << layer_index << " row " << row << " token " << i;
      EXPECT_EQ(v32.as<float>()[at], token + 0.5f)
          << "layer " << layer_index << " row " << row << " token " << i;
    }
  }
  return result;
}

std::string exact_config(const std::string& kind) {
  return kind == "quantized" ? R"({"q_group_size": 4})" : "";
}

std::vector<float> numbers(float first, int count) {
  std::vector<float> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), first);
  return result;
}

}  // namespace larder::test
