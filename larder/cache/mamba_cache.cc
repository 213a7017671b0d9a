#include "larder/cache/mamba_cache.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "larder/base/error.h"

namespace larder {
namespace {

Shape ssm_shape(int32_t batch, const LayerSpec& spec) {
  return {batch, spec.conv_channels, spec.state_size / spec.conv_channels};
}

// Old window and new inputs side by side, cut to the newest.
void push(const StateLayer::Row& row, const float* inputs, int64_t n, const LayerSpec& spec) {
  const int64_t window = spec.conv_kernel;
  for (int64_t channel = 0; channel < spec.conv_channels; ++channel) {
    for (int64_t i = 0; i < window; ++i) {
      const int64_t from = i + n;  // place among the old window and the new inputs
      row.conv[channel * window + i] = from < window ? row.conv_before[channel * window + from]
                                                     : inputs[channel * n + from - window];
    }
  }
}

}  // namespace

MambaCache::MambaCache(Cache& cache, Allocator& allocator, int32_t batch)
    : cache_(cache), allocator_(allocator), batch_(batch) {
  if (batch < 1) fail("a MambaCache of batch ", batch);
  for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    const LayerSpec& spec = cache.layer(layer).spec();
    if (!cache.layer(layer).as_state() || spec.state_size % spec.conv_channels != 0)
      fail("layer ", layer, " of a MambaCache has no state of the same size for each channel");
  }
}

void MambaCache::update(int32_t index, const TensorView& conv, const TensorView& ssm) {
  if (index < 0 || index >= cache_.num_layers())
    fail("layer ", index, " of a cache of ", cache_.num_layers(), " layers");
  StateLayer& layer = cache_.state(index);
  const LayerSpec& spec = layer.spec();
  if (conv.shape.rank() != 3 || conv.shape[2] < 1 ||
      !(conv.shape == Shape{batch_, spec.conv_channels, conv.shape[2]}) ||
      !(ssm.shape == ssm_shape(batch_, spec))) {
    fail("conv ", conv.shape.text(), " and ssm ", ssm.shape.text(), " where [", batch_, ", ",
         spec.conv_channels, ", n] and ", ssm_shape(batch_, spec).text(), " belong");
  }
  const auto n = static_cast<int32_t>(conv.shape[2]);
  const Tensor inputs = clone(allocator_, conv, DType::kF32, "scratch");
  const Tensor states = clone(allocator_, ssm, DType::kF32, "scratch");
  std::vector<int32_t> q_start{0}, slot;
  std::vector<int64_t> position;
  for (int32_t row = 0; row < batch_; ++row) {
    for (int32_t i = 0; i < n; ++i) position.push_back(layer.seq_len(row) + i);
    slot.push_back(row);
    q_start.push_back(static_cast<int32_t>(position.size()));
  }
  const Step step{batch_, q_start.back(), q_start.data(), position.data(), slot.data(), false};
  layer.reserve(step);
  for (int32_t row = 0; row < batch_; ++row) {
    const StateLayer::Row at = layer.row(step, row);
    push(at, inputs.as<float>() + int64_t{row} * spec.conv_channels * n, n, spec);
    std::memcpy(at.state, states.as<float>() + row * spec.state_size,
                static_cast<size_t>(spec.state_size) * sizeof(float));
  }
  layer.commit(step);
}

namespace {

// One part of every row, zeros where a row has no tokens.
Tensor gather(Allocator& allocator, const Shape& shape, StateLayer& layer,
              const float* (StateLayer::*part)(int32_t) const) {
  Tensor out(allocator, shape, DType::kF32, "export");
  const int64_t floats = shape.count() / shape[0];
  std::fill_n(out.as<float>(), shape.count(), 0.0f);
  for (int32_t row = 0; row < static_cast<int32_t>(shape[0]); ++row) {
    if (layer.seq_len(row) > 0)
      std::copy_n((layer.*part)(row), floats, out.as<float>() + row * floats);
  }
  return out;
}

}  // namespace

Tensor MambaCache::conv_states(int32_t index) const {
  StateLayer& layer = cache_.state(index);
  const LayerSpec& spec = layer.spec();
  return gather(allocator_, {batch_, spec.conv_channels, spec.conv_kernel}, layer,
                &StateLayer::conv_of);
}

Tensor MambaCache::ssm_states(int32_t index) const {
  StateLayer& layer = cache_.state(index);
  return gather(allocator_, ssm_shape(batch_, layer.spec()), layer, &StateLayer::state_of);
}

}  // namespace larder
