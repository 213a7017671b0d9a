// Products of codes: every set against the reference, to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "larder/base/str.h"
#include "tests/support/coded_product.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4};

// One product with padded rows of x and out: x's padding is NaN, out's must not be written.
struct Problem {
  Problem(WeightFormat format, int64_t rows_in, int64_t n_in, int64_t k_in)
      : rows(rows_in),
        n(n_in),
        k(k_in),
        w(random_floats(n * k, 2, 0.5f), n, k, format),
        x(random_floats(rows * x_stride(), 1)),
        bias(random_floats(n, 3)),
        residual(random_floats(rows * out_stride(), 4)) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = k; i < x_stride(); ++i) x[static_cast<size_t>(r * x_stride() + i)] = kNaN;
  }
  int64_t x_stride() const { return k + 3; }
  int64_t out_stride() const { return n + 2; }

  std::vector<float> run(const Kernels& set, int threads, int64_t begin, int64_t end,
                         bool plain = false) const {
    KernelExec machine(set, threads);
    const EncodedRows coded(set, x.data() + begin * x_stride(), x_stride(), end - begin, k,
                            threads);
    std::vector<float> out = residual;
    MatmulCodesArgs args;
    args.out =
        TensorView::contiguous(out.data() + begin * out_stride(), DType::kF32, {end - begin, n});
    args.out.stride[0] = out_stride();
    args.x = coded.view();
    args.w = w.view();
    if (!plain) args.bias = bias.data();
    if (!plain) args.residual = args.out.as<float>();
    set.matmul_codes(machine.exec(), {&args, 1});
    return out;
  }
  std::vector<float> run(const Kernels& set, int threads = 1) const {
    return run(set, threads, 0, rows);
  }

  int64_t rows, n, k;
  EncodedMatrix w;
  std::vector<float> x, bias, residual;
};

std::string label(const Kernels& set, WeightFormat format, int64_t rows, int64_t n, int64_t k) {
  return str(set.name, " ", weight_format_name(format), " ", rows, "x", n, "x", k);
}

TEST(MatmulCodes, EverySetGivesTheBitsOfTheReference) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t k : {1, 31, 33, 64, 257}) {
      for (const int64_t n : {1, 8, 15, 17, 40}) {
        for (const int64_t rows : {1, 2, 5, 7, 12, 25}) {
          const Problem p(format, rows, n, k);
          const std::vector<float> want = p.run(reference_kernels());
          for (const Kernels* set : available_kernel_sets())
            ASSERT_EQ(p.run(*set), want) << label(*set, format, rows, n, k);
        }
      }
    }
  }
}

// Of x, codes are off by half a step of a group's largest / 16256, beside int4 by that and half of
// a step of the largest / 127; of w they are what they stand for. Sums of f32 add a few units in
// the last place of the largest partial sum.
TEST(MatmulCodes, IsOffByTheRoundingOfActivationsOnly) {
  for (const WeightFormat format : kFormats) {
    for (const auto& [rows, n, k] : {std::array<int64_t, 3>{3, 20, 100}, {13, 33, 577}}) {
      const Problem p(format, rows, n, k);
      const std::vector<float> w = p.w.widened(), got = p.run(*available_kernel_sets().back());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < n; ++j) {
          double want = 0, bound = 0, size = 0;
          for (int64_t g = 0; g < k; g += kCodeGroup) {
            double most = 0, weights = 0;
            for (int64_t i = g; i < std::min(g + kCodeGroup, k); ++i) {
              const double xi = p.x[static_cast<size_t>(r * p.x_stride() + i)],
                           wi = w[static_cast<size_t>(j * k + i)];
              want += xi * wi;
              size += std::fabs(xi * wi);
              most = std::max(most, std::fabs(xi));
              weights += std::fabs(wi);
            }
            bound += weights * most / 2 / 16256;
            if (format == WeightFormat::kInt4) bound += weights * most / 2 / 127;
          }
          const auto at = static_cast<size_t>(r * p.out_stride() + j);
          want += p.bias[static_cast<size_t>(j)] + p.residual[at];
          EXPECT_NEAR(got[at], want, bound + 1e-5 * (size + 1)) << r << " " << j;
        }
      }
    }
  }
}

TEST(MatmulCodes, ARowIsTheSameAloneInCompanyAndOnAnyThreads) {
  for (const WeightFormat format : kFormats) {
    const Problem p(format, 29, 70, 200);
    for (const Kernels* set : available_kernel_sets()) {
      const std::vector<float> all = p.run(*set);
      for (const int threads : {2, 3}) EXPECT_EQ(p.run(*set, threads), all) << set->name;
      for (const int64_t r : {0, 11, 12, 28}) {
        const std::vector<float> alone = p.run(*set, 1, r, r + 1);
        for (int64_t j = 0; j < p.out_stride(); ++j) {
          const auto at = static_cast<size_t>(r * p.out_stride() + j);
          ASSERT_EQ(alone[at], all[at]) << set->name << " row " << r << " column " << j;
        }
      }
    }
  }
}

TEST(MatmulCodes, SeveralProductsOfFormatsOfTheirOwnAreEachAsAlone) {
  const Problem a(WeightFormat::kInt8, 14, 40, 96), b(WeightFormat::kInt4, 14, 17, 96);
  for (const Kernels* set : available_kernel_sets()) {
    for (const int threads : {1, 2}) {
      KernelExec machine(*set, threads);
      const EncodedRows coded(*set, a.x.data(), a.x_stride(), a.rows, a.k);
      std::vector<float> out_a(static_cast<size_t>(14 * 40)), out_b(static_cast<size_t>(14 * 17));
      MatmulCodesArgs args[2];
      args[0].out = TensorView::contiguous(out_a.data(), DType::kF32, {14, 40});
      args[1].out = TensorView::contiguous(out_b.data(), DType::kF32, {14, 17});
      args[0].w = a.w.view();
      args[1].w = b.w.view();
      args[0].x = args[1].x = coded.view();
      set->matmul_codes(machine.exec(), std::span(args));
      const std::vector<float> want_a = a.run(reference_kernels(), 1, 0, 14, true),
                               want_b = b.run(reference_kernels(), 1, 0, 14, true);
      for (size_t r = 0; r < 14; ++r) {
        for (size_t j = 0; j < 40; ++j) ASSERT_EQ(out_a[r * 40 + j], want_a[r * 42 + j]);
        for (size_t j = 0; j < 17; ++j) ASSERT_EQ(out_b[r * 17 + j], want_b[r * 19 + j]);
      }
    }
  }
}

// Products of the largest codes: 16-bit sums in between must not saturate.
TEST(MatmulCodes, TheLargestCodesDoNotSaturate) {
  for (const WeightFormat format : kFormats) {
    constexpr int64_t kRows = 2, kN = 18, kK = 64;
    std::vector<float> w(kN * kK), x(kRows * kK);
    for (size_t i = 0; i < w.size(); ++i) w[i] = i / 64 % 3 == 0 ? 1.0f : i % 2 == 0 ? 1.0f : -1.0f;
    for (size_t i = 0; i < x.size(); ++i) x[i] = i < 64 ? 1.0f : i % 2 == 0 ? 1.0f : -1.0f;
    const EncodedMatrix matrix(w, kN, kK, format);
    for (const Kernels* set : available_kernel_sets()) {
      const EncodedRows rows(*set, x.data(), kK, kRows, kK);
      std::vector<float> out(kRows * kN);
      KernelExec machine(*set);
      MatmulCodesArgs args;
      args.out = TensorView::contiguous(out.data(), DType::kF32, {kRows, kN});
      args.x = rows.view();
      args.w = matrix.view();
      set->matmul_codes(machine.exec(), {&args, 1});
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t j = 0; j < kN; ++j) {
          const float want = (j % 3 == 0) == (r == 0) ? 64.0f : 0.0f;
          // bf16 rounds 1 / 127 and 2 / 15 by less than 2^-8.
          EXPECT_NEAR(out[r * kN + j], want, 0.3f) << set->name << " " << r << " " << j;
        }
      }
    }
  }
}

TEST(CodeRows, EverySetGivesTheBytesOfTheReference) {
  for (const int64_t k : {1, 31, 32, 33, 100}) {
    for (const int64_t rows : {1, 11, 12, 30}) {
      std::vector<float> x = random_floats(rows * (k + 5), 9, 3.0f);
      if (k > 40) {  // groups of one sign, tiny, zero, subnormal, huge
        for (size_t i = 0; i < 32; ++i) x[i] = std::fabs(x[i]) * 1e-30f;
        for (size_t i = 32; i < 64; ++i) x[i] = i % 2 == 0 ? 0.0f : 1e-40f;
        for (size_t i = 64; i < 96; ++i) x[i] *= 1e38f;
      }
      const EncodedRows want(reference_kernels(), x.data(), k + 5, rows, k);
      for (const Kernels* set : available_kernel_sets())
        for (const int threads : {1, 2})
          EXPECT_EQ(EncodedRows(*set, x.data(), k + 5, rows, k, threads).bytes(), want.bytes())
              << set->name << " " << rows << "x" << k;
    }
  }
}

TEST(CodeRows, ANumberIsAHighAndALowPart) {
  std::vector<float> x(32, 0.0f);
  x[0] = -16256.0f;
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  x[4] = 64.0f;
  x[5] = -64.0f;
  x[6] = 1000.0f;
  for (const Kernels* set : available_kernel_sets()) {
    const EncodedRows rows(*set, x.data(), 32, 1, 32);
    const CodedRowGroup& group = rows.view().group[0];
    const int want[][2] = {{-127, 0}, {0, 0}, {0, 2}, {0, -2}, {1, -64}, {0, -64}, {8, -24}};
    for (size_t i = 0; i < std::size(want); ++i) {
      EXPECT_EQ(group.high[i / 4][0][i % 4], want[i][0]) << set->name << " " << x[i];
      EXPECT_EQ(group.low[i / 4][0][i % 4], want[i][1]) << set->name << " " << x[i];
    }
    EXPECT_EQ(group.scale[0], 1.0f);
    EXPECT_EQ(group.high_scale[0], 128.0f);
    EXPECT_EQ(group.high_sum[0], 128.0f * (-127 + 1 + 8));
    EXPECT_EQ(group.offset[0], -128 * (-16256 + 2 - 2 + 1000));
  }
}

TEST(MatmulCodes, ANaNOrAnInfinityStaysInItsRow) {
  for (const WeightFormat format : kFormats) {
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      Problem p(format, 14, 20, 70);
      const std::vector<float> clean = p.run(reference_kernels());
      p.x[static_cast<size_t>(12 * p.x_stride() + 69)] = bad;
      for (const Kernels* set : available_kernel_sets()) {
        const std::vector<float> got = p.run(*set);
        for (int64_t r = 0; r < 14; ++r) {
          for (int64_t j = 0; j < 20; ++j) {
            const auto at = static_cast<size_t>(r * p.out_stride() + j);
            if (r == 12)
              EXPECT_TRUE(std::isnan(got[at])) << set->name;
            else
              EXPECT_EQ(got[at], clean[at]) << set->name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace larder::test
