// Kernels along a row, for one set. The rest of a row is a masked vector through the same
// operations, so an element's bits do not depend on its place.
#pragma once

#include <cstdint>

#include "larder/cpu/simd/math-inl.h"
#include "larder/tensor/dtype.h"

namespace larder::cpu {
namespace {

constexpr float kSqrtHalf = 0x1.6a09e6p-1f, kSqrtTwoOverPi = 0x1.988454p-1f;

// Calls f(offset, load, store) for every vector of [0, n): `load` and `store` take the whole vector
// or its first lanes.
template <class V>
struct WholeVector {
  static V load(const float* p) { return V::load(p); }
  static void store(V v, float* p) { v.store(p); }
};
template <class V>
struct FirstLanes {
  int64_t n;
  V load(const float* p) const { return V::load_first(p, n); }
  void store(V v, float* p) const { v.store_first(p, n); }
};
template <class V, class F>
inline void for_each_vector(int64_t n, F f) {
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) f(i, WholeVector<V>{});
  if (i < n) f(i, FirstLanes<V>{n - i});
}

// Four accumulators by turns, added as (0 + 1) + (2 + 3), then the vector's tree. The order depends
// on n only.
template <class V>
inline float sum_of_squares(const float* x, int64_t n) {
  V s0 = V::zero(), s1 = V::zero(), s2 = V::zero(), s3 = V::zero();
  int64_t i = 0;
  for (; i + 4 * V::kLanes <= n; i += 4 * V::kLanes) {
    const V a = V::load(x + i), b = V::load(x + i + V::kLanes);
    const V c = V::load(x + i + 2 * V::kLanes), d = V::load(x + i + 3 * V::kLanes);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
    s2 = fma(c, c, s2);
    s3 = fma(d, d, s3);
  }
  for_each_vector<V>(n - i, [&](int64_t j, auto lanes) {
    const V a = lanes.load(x + i + j);
    s0 = fma(a, a, s0);
  });
  return reduce_add(add(add(s0, s1), add(s2, s3)));
}

template <class V>
void rms_norm_row(float* out, const float* x, const float* weight, float weight_offset, float eps,
                  int64_t n) {
  const float mean = sum_of_squares<V>(x, n) / static_cast<float>(n);
  const V scale = V::set1(1.0f / __builtin_sqrtf(mean + eps)), offset = V::set1(weight_offset);
  for_each_vector<V>(n, [&](int64_t i, auto lanes) {
    const V w = add(lanes.load(weight + i), offset);
    lanes.store(mul(mul(lanes.load(x + i), scale), w), out + i);
  });
}

// No fused products: the same bits as the reference set, which are those of the ecosystem.
template <class V>
void rope_pairs(float* low, float* high, const float* cos, const float* sin, int64_t half) {
  for_each_vector<V>(half, [&](int64_t i, auto lanes) {
    const V a = lanes.load(low + i), b = lanes.load(high + i);
    const V c = lanes.load(cos + i), s = lanes.load(sin + i);
    lanes.store(sub(mul(a, c), mul(b, s)), low + i);
    lanes.store(add(mul(b, c), mul(a, s)), high + i);
  });
}

template <class V>
void silu_mul_row(float* gate, const float* up, int64_t n) {
  const V one = V::set1(1.0f);
  for_each_vector<V>(n, [&](int64_t i, auto lanes) {
    const V x = lanes.load(gate + i);
    const V silu = div(x, add(one, exp(sub(V::zero(), x))));
    lanes.store(mul(silu, lanes.load(up + i)), gate + i);
  });
}

template <class V>
void gelu_tanh_mul_row(float* gate, const float* up, int64_t n) {
  const V one = V::set1(1.0f), half = V::set1(0.5f);
  for_each_vector<V>(n, [&](int64_t i, auto lanes) {
    const V x = lanes.load(gate + i);
    const V cubed = mul(V::set1(0.044715f), mul(mul(x, x), x));
    const V inner = mul(V::set1(kSqrtTwoOverPi), add(x, cubed));
    const V gelu = mul(mul(half, x), add(one, tanh(inner)));
    lanes.store(mul(gelu, lanes.load(up + i)), gate + i);
  });
}

template <class V>
void gelu_mul_row(float* gate, const float* up, int64_t n) {
  const V one = V::set1(1.0f), half = V::set1(0.5f);
  for_each_vector<V>(n, [&](int64_t i, auto lanes) {
    const V x = lanes.load(gate + i);
    const V gelu = mul(mul(half, x), add(one, erf(mul(x, V::set1(kSqrtHalf)))));
    lanes.store(mul(gelu, lanes.load(up + i)), gate + i);
  });
}

template <class V>
void softcap_row(float* x, int64_t n, float cap) {
  const V c = V::set1(cap);
  for_each_vector<V>(n, [&](int64_t i, auto lanes) {
    lanes.store(mul(c, tanh(div(lanes.load(x + i), c))), x + i);
  });
}

template <class V>
void exp_row(float* x, int64_t n) {
  for_each_vector<V>(n, [&](int64_t i, auto lanes) { lanes.store(exp(lanes.load(x + i)), x + i); });
}
template <class V>
void tanh_row(float* x, int64_t n) {
  for_each_vector<V>(n,
                     [&](int64_t i, auto lanes) { lanes.store(tanh(lanes.load(x + i)), x + i); });
}
template <class V>
void erf_row(float* x, int64_t n) {
  for_each_vector<V>(n, [&](int64_t i, auto lanes) { lanes.store(erf(lanes.load(x + i)), x + i); });
}

}  // namespace
}  // namespace larder::cpu
