// Kernels along rows: rms_norm, rope, gate_mul, softcap, against double precision, and the promise
// that a row's bits depend on nothing but the row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/kernel_exec.h"
#include "tests/support/random_floats.h"

namespace larder {
namespace {

using test::KernelExec;
using test::random_floats;

const int64_t kSizes[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 576};

TensorView rows_of(std::vector<float>& values, int64_t rows, int64_t n, int64_t stride) {
  TensorView view = TensorView::contiguous(values.data(), DType::kF32, Shape{rows, n});
  view.stride[0] = stride;
  return view;
}

size_t at(int64_t row, int64_t stride, int64_t i) { return static_cast<size_t>(row * stride + i); }

TEST(RmsNorm, AgreesWithDoublePrecision) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const int64_t n : kSizes) {
      for (const float offset : {0.0f, 1.0f}) {
        KernelExec machine(*set);
        const int64_t rows = 3, stride = n + 5;
        std::vector<float> x = random_floats(rows * stride, 1, 3.0f), out(x.size(), -7.0f);
        const std::vector<float> weight = random_floats(n, 2);
        set->rms_norm(machine.exec(), rows_of(out, rows, n, stride), rows_of(x, rows, n, stride),
                      weight.data(), offset, 1e-5f);
        for (int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (int64_t i = 0; i < n; ++i) sum += std::pow(double{x[at(r, stride, i)]}, 2);
          const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-5f);
          for (int64_t i = 0; i < n; ++i) {
            const double w = double{weight[static_cast<size_t>(i)]} + offset;
            const double want = x[at(r, stride, i)] * scale * w;
            // n squares of one sign are added (a relative error of n half-ulps at most, halved by
            // the root); then five more roundings. The sum w + offset rounds on its own.
            const double bound = (static_cast<double>(n) / 2 + 5) * 0x1p-24 * std::fabs(want) +
                                 0x1p-24 * std::fabs(x[at(r, stride, i)] * scale) * 2;
            ASSERT_NEAR(out[at(r, stride, i)], want, bound) << set->name << " " << n;
          }
          for (int64_t i = n; i < stride; ++i) ASSERT_EQ(out[at(r, stride, i)], -7.0f);
        }
      }
    }
  }
}

TEST(RmsNorm, OfZerosIsZeroAndMayRunInPlace) {
  for (const Kernels* set : available_kernel_sets()) {
    KernelExec machine(*set);
    std::vector<float> zeros(65), weight(65, 2.0f);
    const TensorView view = rows_of(zeros, 1, 65, 65);
    set->rms_norm(machine.exec(), view, view, weight.data(), 0.0f, 1e-6f);
    for (const float v : zeros) EXPECT_EQ(v, 0.0f);
    std::vector<float> x = random_floats(65, 3), out(65);
    set->rms_norm(machine.exec(), rows_of(out, 1, 65, 65), rows_of(x, 1, 65, 65), weight.data(),
                  0.0f, 1e-6f);
    set->rms_norm(machine.exec(), rows_of(x, 1, 65, 65), rows_of(x, 1, 65, 65), weight.data(), 0.0f,
                  1e-6f);
    EXPECT_EQ(x, out);
  }
}

struct RopeCase {
  std::vector<float> x, cos_sin;
  int64_t tokens = 5, heads = 3, half, head_dim;
  TensorView view() {
    TensorView v = TensorView::contiguous(x.data(), DType::kF32, Shape{tokens, heads, head_dim});
    v.stride[0] = heads * head_dim + 4;
    return v;
  }
};

RopeCase rope_case(int64_t half, int64_t rest) {
  RopeCase c;
  c.half = half;
  c.head_dim = 2 * half + rest;
  c.x = random_floats(c.tokens * (c.heads * c.head_dim + 4), 4);
  c.cos_sin.resize(static_cast<size_t>(c.tokens * 2 * half));
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(1000 * t) *
                           std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      c.cos_sin[static_cast<size_t>(t * 2 * half + i)] = static_cast<float>(std::cos(angle));
      c.cos_sin[static_cast<size_t>(t * 2 * half + half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return c;
}

TEST(Rope, AgreesWithDoublePrecisionAndLeavesTheOtherChannels) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const int64_t half : {1, 4, 7, 16, 32, 33}) {
      for (const int64_t rest : {0, 6}) {
        RopeCase c = rope_case(half, rest);
        const std::vector<float> before = c.x;
        KernelExec machine(*set, 2);
        set->rope(machine.exec(), c.view(), c.cos_sin.data(), half);
        std::vector<float> want = before;
        for (int64_t t = 0; t < c.tokens; ++t) {
          for (int64_t h = 0; h < c.heads; ++h) {
            const size_t head = at(t, c.heads * c.head_dim + 4, h * c.head_dim);
            for (int64_t i = 0; i < half; ++i) {
              const double cos = c.cos_sin[static_cast<size_t>(t * 2 * half + i)];
              const double sin = c.cos_sin[static_cast<size_t>(t * 2 * half + half + i)];
              const size_t low = head + static_cast<size_t>(i),
                           high = low + static_cast<size_t>(half);
              const double a = before[low], b = before[high];
              // Two products and a sum: three roundings of at most |a| + |b| each.
              const double bound = 3 * 0x1p-24 * (std::fabs(a) + std::fabs(b));
              ASSERT_NEAR(c.x[low], a * cos - b * sin, bound) << set->name;
              ASSERT_NEAR(c.x[high], b * cos + a * sin, bound) << set->name;
              want[low] = c.x[low], want[high] = c.x[high];
            }
          }
        }
        EXPECT_EQ(c.x, want) << "a channel past 2 * half changed";
      }
    }
  }
}

TEST(Rope, HasTheSameBitsInEverySet) {
  RopeCase want = rope_case(33, 2);
  KernelExec reference(reference_kernels());
  reference_kernels().rope(reference.exec(), want.view(), want.cos_sin.data(), 33);
  for (const Kernels* set : available_kernel_sets()) {
    RopeCase got = rope_case(33, 2);
    KernelExec machine(*set);
    set->rope(machine.exec(), got.view(), got.cos_sin.data(), 33);
    EXPECT_EQ(got.x, want.x) << set->name;
  }
}

double activate(double x, Activation act) {
  if (act == Activation::kSilu) return x / (1 + std::exp(-x));
  if (act == Activation::kGelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(GateMul, AgreesWithDoublePrecision) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
      for (const int64_t n : kSizes) {
        const int64_t rows = 2, stride = n + 3;
        std::vector<float> gate = random_floats(rows * stride, 5, 3.0f), got = gate;
        std::vector<float> up = random_floats(rows * stride, 6);
        KernelExec machine(*set);
        set->gate_mul(machine.exec(), rows_of(got, rows, n, stride), rows_of(up, rows, n, stride),
                      act);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            const double x = gate[at(r, stride, i)], u = up[at(r, stride, i)];
            // 1 + tanh and 1 + erf cancel where x < 0 (as in the ecosystem): the error is a few
            // roundings of |x u|, not of the result. The argument of tanh is off by 3 roundings of
            // itself, which its slope turns into at most 3 * 0.45 of them.
            ASSERT_NEAR(got[at(r, stride, i)], activate(x, act) * u,
                        6 * 0x1p-24 * std::fabs(x * u) + 1e-37)
                << set->name << " " << static_cast<int>(act) << " x " << x;
          }
          for (int64_t i = n; i < stride; ++i)
            ASSERT_EQ(got[at(r, stride, i)], gate[at(r, stride, i)]);
        }
      }
    }
  }
}

TEST(GateMul, IsRightForHugeAndSpecialGates) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Kernels* set : available_kernel_sets()) {
    for (const Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
      std::vector<float> gate = {0.0f, -0.0f, 1e4f, -1e4f, 3e38f, -3e38f, NAN, inf};
      std::vector<float> up(gate.size(), 1.0f);
      KernelExec machine(*set);
      set->gate_mul(machine.exec(), rows_of(gate, 1, 8, 8), rows_of(up, 1, 8, 8), act);
      EXPECT_EQ(gate[0], 0.0f);
      EXPECT_EQ(gate[1], 0.0f);
      EXPECT_EQ(gate[2], 1e4f);
      EXPECT_EQ(gate[3], 0.0f);
      EXPECT_EQ(gate[4], 3e38f);
      EXPECT_EQ(gate[5], 0.0f);
      EXPECT_TRUE(std::isnan(gate[6]));
      EXPECT_EQ(gate[7], inf);
    }
  }
}

TEST(Softcap, AgreesWithDoublePrecision) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const int64_t n : kSizes) {
      for (const float cap : {30.0f, 50.0f}) {
        std::vector<float> x = random_floats(n, 7, 40.0f), got = x;
        KernelExec machine(*set);
        set->softcap(machine.exec(), got.data(), n, cap);
        for (size_t i = 0; i < x.size(); ++i) {
          const double want = cap * std::tanh(double{x[i]} / cap);
          // The quotient, tanh (2 ulp) and the product.
          ASSERT_NEAR(got[i], want, 6 * 0x1p-24 * std::fabs(want)) << set->name;
        }
      }
    }
  }
}

// Runs `kernel` on `rows` rows of n that start at data[offset].
using RowKernel =
    std::function<void(const Kernels&, const Exec&, float* data, int64_t rows, int64_t n)>;

void expect_rows_alone_equal_rows_together(const RowKernel& kernel) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const int64_t n : {1, 7, 65, 577}) {
      const int64_t rows = n == 577 ? 67 : 9;  // the larger is split over threads
      const std::vector<float> x = random_floats(rows * n, 8, 2.0f);
      std::vector<float> together = x;
      KernelExec one(*set);
      kernel(*set, one.exec(), together.data(), rows, n);
      for (const int threads : {2, 3, 7}) {
        KernelExec machine(*set, threads);
        std::vector<float> again = x;
        kernel(*set, machine.exec(), again.data(), rows, n);
        ASSERT_EQ(std::memcmp(again.data(), together.data(), x.size() * 4), 0) << set->name;
      }
      for (int64_t r = 0; r < rows; ++r) {
        // Alone, and at another alignment.
        std::vector<float> alone(static_cast<size_t>(n) + 1);
        std::memcpy(alone.data() + 1, x.data() + r * n, static_cast<size_t>(n) * 4);
        kernel(*set, one.exec(), alone.data() + 1, 1, n);
        ASSERT_EQ(
            std::memcmp(alone.data() + 1, together.data() + r * n, static_cast<size_t>(n) * 4), 0)
            << set->name << " row " << r;
      }
    }
  }
}

TEST(RowKernels, GiveARowTheSameBitsAloneAndInAnyCompany) {
  expect_rows_alone_equal_rows_together(
      [](const Kernels& set, const Exec& exec, float* data, int64_t rows, int64_t n) {
        const std::vector<float> weight = random_floats(n, 9);
        const TensorView x = TensorView::contiguous(data, DType::kF32, Shape{rows, n});
        set.rms_norm(exec, x, x, weight.data(), 1.0f, 1e-6f);
      });
  for (const Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
    expect_rows_alone_equal_rows_together(
        [act](const Kernels& set, const Exec& exec, float* data, int64_t rows, int64_t n) {
          std::vector<float> up(static_cast<size_t>(rows * n), 1.5f);
          set.gate_mul(exec, TensorView::contiguous(data, DType::kF32, Shape{rows, n}),
                       rows_of(up, rows, n, n), act);
        });
  }
  expect_rows_alone_equal_rows_together([](const Kernels& set, const Exec& exec, float* data,
                                           int64_t rows,
                                           int64_t n) { set.softcap(exec, data, rows * n, 3.0f); });
  expect_rows_alone_equal_rows_together(
      [](const Kernels& set, const Exec& exec, float* data, int64_t rows, int64_t n) {
        const TensorView x = TensorView::contiguous(data, DType::kF32, Shape{rows, n});
        set.round_rows(exec, x, x, DType::kBF16);
      });
}

TEST(RowKernels, GiveAnElementTheSameBitsAtAnyPlaceOfTheRow) {
  for (const Kernels* set : available_kernel_sets()) {
    KernelExec machine(*set);
    for (const float value : {-2.7f, -0.3f, 0.1f, 0.9f, 5.5f}) {
      std::vector<float> capped(37, value), gated(37, value), up(37, 1.0f);
      set->softcap(machine.exec(), capped.data(), 37, 2.0f);
      set->gate_mul(machine.exec(), rows_of(gated, 1, 37, 37), rows_of(up, 1, 37, 37),
                    Activation::kGeluTanh);
      for (size_t i = 1; i < 37; ++i) {
        EXPECT_EQ(capped[i], capped[0]) << set->name;
        EXPECT_EQ(gated[i], gated[0]) << set->name;
      }
    }
  }
}

}  // namespace
}  // namespace larder
