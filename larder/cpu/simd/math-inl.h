// exp, tanh and erf of every lane, the same operations in every set (the widths differ, the bits do
// not). Coefficients are minimax fits made for this file with 40-digit arithmetic. Errors are the
// largest found over all f32 arguments by tests/cpu/math_test.cc.
#pragma once

namespace larder::cpu {
namespace {

// c[0] + x * (c[1] + x * (...)), each step rounded once.
template <class V>
inline V polynomial(V, float last) {
  return V::set1(last);
}
template <class V, class... Rest>
inline V polynomial(V x, float first, Rest... rest) {
  return fma(polynomial(x, rest...), x, V::set1(first));
}

// Below 1.1 ulp (results below the smallest normal: rounded to the grid there). exp(-inf) = 0, past
// the largest float +inf, NaN stays NaN.
template <class V>
inline V exp(V x) {
  // Beyond these the result is +inf and 0. min and max give their second argument for a NaN.
  const V inside = max(V::set1(-105.0f), min(V::set1(89.0f), x));
  const V n = round(mul(inside, V::set1(0x1.715476p+0f)));  // 1 / ln 2
  const V r0 = fma(n, V::set1(-0x1.62e430p-1f), inside);    // ln 2 in two parts
  const V r = fma(n, V::set1(0x1.05c610p-29f), r0);         // in [-0.35, 0.35]
  const V tail = polynomial(r, 0.5f, 0x1.55548ep-3f, 0x1.55545ep-5f, 0x1.123bdep-7f,
                            0x1.6db4dep-10f);  // (e^r - 1 - r) / r^2
  const V e = add(V::set1(1.0f), fma(tail, mul(r, r), r));
  return scale_by_pow2(e, n);
}

// Below 1.5 ulp. tanh(-0) = -0, +-inf gives +-1, NaN stays NaN.
template <class V>
inline V tanh(V x) {
  const V a = abs(x);
  const V t = mul(x, x);
  const V p = polynomial(t, -0x1.555534p-2f, 0x1.110768p-3f, -0x1.b84448p-5f, 0x1.5256d6p-6f,
                         -0x1.76ac12p-8f);  // (tanh(x) / x - 1) / x^2 for |x| < 0.625
  const V small = fma(mul(p, t), a, a);
  const V e = exp(add(a, a));
  const V large = sub(V::set1(1.0f), div(V::set1(2.0f), add(e, V::set1(1.0f))));
  return copysign(V::select(less(a, V::set1(0.625f)), small, large), x);
}

// Below 1.2 ulp. erf(-0) = -0, +-inf gives +-1, NaN stays NaN.
template <class V>
inline V erf(V x) {
  const V a = abs(x);
  const V t = mul(x, x);
  const V p = polynomial(t, 0x1.06eba8p-3f, -0x1.812746p-2f, 0x1.ce2f0ap-4f, -0x1.b829d8p-6f,
                         0x1.562b1ap-8f, -0x1.bcd7dep-11f, 0x1.d8b88ep-14f,
                         -0x1.44cfc4p-17f);  // erf(x) / x - 1 for |x| < 1
  const V small = fma(p, a, a);
  const V b = min(V::set1(4.0f), a);  // erf(4) rounds to 1
  const V q = polynomial(b, -0x1.8a563cp-13f, 0x1.212c0cp+0f, 0x1.443568p-1f, 0x1.bc1510p-4f,
                         -0x1.9d02f8p-6f, 0x1.138caap-8f, -0x1.cec5cap-12f,
                         0x1.6bd79ap-16f);  // -ln(1 - erf(x)) for 1 <= x <= 4
  const V large = sub(V::set1(1.0f), exp(sub(V::zero(), q)));
  return copysign(V::select(less(a, V::set1(1.0f)), small, large), x);
}

}  // namespace
}  // namespace larder::cpu
