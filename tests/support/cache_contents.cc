#include "tests/support/cache_contents.h"

#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

struct RandomStep {
  std::vector<int32_t> q_start{0}, slot;
  std::vector<int64_t> position;

  RandomStep(const Cache& cache, const std::vector<RandomFeed>& feeds) {
    for (const RandomFeed& feed : feeds) {
      for (int64_t i = 0; i < feed.count; ++i) position.push_back(cache.seq_len(feed.slot) + i);
      slot.push_back(feed.slot);
      q_start.push_back(static_cast<int32_t>(position.size()));
    }
  }
  Step step() const {
    return {static_cast<int32_t>(slot.size()),
            q_start.back(),
            q_start.data(),
            position.data(),
            slot.data(),
            false};
  }
  // [total_q, heads, head_dim] of one layer.
  std::vector<float> values(const LayerSpec& spec, uint64_t seed) const {
    const int64_t token = int64_t{spec.num_kv_heads} * spec.head_dim;
    std::vector<float> all;
    for (size_t b = 0; b < slot.size(); ++b) {
      for (int32_t i = q_start[b]; i < q_start[b + 1]; ++i) {
        const auto at = static_cast<uint64_t>(position[static_cast<size_t>(i)]);
        const auto row = static_cast<uint64_t>(slot[b]);
        const auto one = random_floats(token, (seed * 1000 + row) * 1000003 + at);
        all.insert(all.end(), one.begin(), one.end());
      }
    }
    return all;
  }
};

}  // namespace

void feed_random(Cache& cache, const Exec& exec, const std::vector<RandomFeed>& feeds,
                 uint64_t seed) {
  const RandomStep random(cache, feeds);
  const Step step = random.step();
  cache.begin(step);
  for (int32_t i = 0; i < cache.num_layers(); ++i) {
    KVLayer& layer = cache.kv(i);
    const auto of_layer = seed * 64 + static_cast<uint64_t>(i) * 2;
    std::vector<float> k = random.values(layer.spec(), of_layer);
    std::vector<float> v = random.values(layer.spec(), of_layer + 1);
    const Shape shape{step.total_q, layer.spec().num_kv_heads, layer.spec().head_dim};
    layer.append(exec, TensorView::contiguous(k.data(), DType::kF32, shape),
                 TensorView::contiguous(v.data(), DType::kF32, shape), step);
    layer.commit(step);
  }
}

std::vector<std::byte> contents(const Cache& cache, int32_t row) {
  HostAllocator host;
  std::vector<std::byte> all;
  for (int32_t i = 0; i < cache.num_layers(); ++i) {
    const KVLayer& layer = cache.kv(i);
    const Shape shape{layer.spec().num_kv_heads, layer.kept_len(row), layer.spec().head_dim};
    const Tensor k(host, shape, layer.dtype(), "test"), v(host, shape, layer.dtype(), "test");
    layer.read(row, k, v);
    for (const TensorView& side : {k.view(), v.view()})
      all.insert(all.end(), side.bytes(), side.bytes() + side.byte_size());
  }
  return all;
}

}  // namespace larder::test
