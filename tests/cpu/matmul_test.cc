#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/kernel_exec.h"
#include "tests/support/random_floats.h"

namespace larder {
namespace {

using test::KernelExec;
using test::random_floats;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Pair {
  DType compute, weight;
};
const Pair kPairs[] = {{DType::kF32, DType::kF32},  {DType::kF32, DType::kBF16},
                       {DType::kF32, DType::kF16},  {DType::kBF16, DType::kBF16},
                       {DType::kBF16, DType::kF32}, {DType::kF16, DType::kF16}};

// Elements of `dtype` that start `shift` bytes past an aligned address, with NaNs before and
// behind.
class Elements {
 public:
  Elements(DType dtype, const std::vector<float>& values, size_t shift)
      : dtype_(dtype),
        bytes_(values.size() * dtype_size(dtype) + kGuard * 2 + shift, std::byte{255}) {
    const size_t misfit = reinterpret_cast<uintptr_t>(bytes_.data()) % 64;
    begin_ = bytes_.data() + (64 - misfit) + shift;
    reference_kernels().store(begin_, dtype, values.data(), static_cast<int64_t>(values.size()));
  }
  void* data() { return begin_; }
  std::vector<float> values(size_t count) const {
    std::vector<float> out(count);
    reference_kernels().load(out.data(), begin_, dtype_, static_cast<int64_t>(count));
    return out;
  }

 private:
  static constexpr size_t kGuard = 128;
  DType dtype_;
  std::vector<std::byte> bytes_;
  std::byte* begin_;
};

// One product with padded rows of x and out. The padding of x is NaN and must not be read as data;
// that of out must not be written.
struct Problem {
  Problem(const Kernels& set, Pair pair, int64_t rows_in, int64_t n_in, int64_t k_in,
          size_t shift = 0)
      : rows(rows_in),
        n(n_in),
        k(k_in),
        x_type(set.matmul_input(pair.compute, pair.weight)),
        x(x_type, padded_x(pair.compute), 0),
        w_type(pair.weight),
        w(pair.weight, random_floats(n * k, 2, 0.5f), shift),
        bias(random_floats(n, 3)),
        residual(random_floats(rows * out_stride(), 4)) {}

  int64_t x_stride() const { return k + 3; }
  int64_t out_stride() const { return n + 2; }
  std::vector<float> padded_x(DType compute) const {
    std::vector<float> values = random_floats(rows * x_stride(), 1);
    for (float& v : values) {  // activations are rounded to `compute` before a product
      double held = 0;
      reference_kernels().store(&held, compute, &v, 1);
      reference_kernels().load(&v, &held, compute, 1);
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = k; i < x_stride(); ++i)
        values[static_cast<size_t>(r * x_stride() + i)] = kNaN;
    return values;
  }

  // Rows [begin, end) and columns [col, col_end).
  std::vector<float> run(const Kernels& set, int threads, int64_t begin, int64_t end, int64_t col,
                         int64_t col_end) {
    KernelExec machine(set, threads);
    std::vector<float> out = residual;
    MatmulArgs args;
    float* first = out.data() + begin * out_stride() + col;
    args.out = TensorView::contiguous(first, DType::kF32, Shape{end - begin, col_end - col});
    args.out.stride[0] = out_stride();
    args.residual = first;
    args.bias = bias.data() + col;
    const auto x_size = static_cast<int64_t>(dtype_size(x_type));
    args.x = TensorView::contiguous(static_cast<char*>(x.data()) + begin * x_stride() * x_size,
                                    x_type, Shape{end - begin, k});
    args.x.stride[0] = x_stride();
    args.w = TensorView::contiguous(
        static_cast<char*>(w.data()) + col * k * static_cast<int64_t>(dtype_size(w_type)), w_type,
        Shape{col_end - col, k});
    std::vector<char> room(set.matmul_room(end - begin, k, x_type, w_type));
    args.room = room.data();
    set.matmul(machine.exec(), {&args, 1});
    return out;
  }
  std::vector<float> run(const Kernels& set, int threads = 1) {
    return run(set, threads, 0, rows, 0, n);
  }

  int64_t rows, n, k;
  DType x_type;
  Elements x;
  DType w_type;
  Elements w;
  std::vector<float> bias, residual;
};

std::string label(const Kernels& set, Pair pair, int64_t rows, int64_t n, int64_t k) {
  return str(set.name, " ", dtype_name(pair.compute), " x ", dtype_name(pair.weight), " ", rows,
             "x", n, "x", k);
}

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix as_matrix(const std::vector<float>& values, int64_t rows, int64_t cols, int64_t stride) {
  Matrix m(rows, cols);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) m(r, c) = values[static_cast<size_t>(r * stride + c)];
  return m;
}

void expect_near_oracle(const Kernels& set, Pair pair, int64_t rows, int64_t n, int64_t k,
                        size_t shift) {
  SCOPED_TRACE(label(set, pair, rows, n, k));
  Problem p(set, pair, rows, n, k, shift);
  const std::vector<float> got = p.run(set);
  const Matrix x =
      as_matrix(p.x.values(static_cast<size_t>(rows * p.x_stride())), rows, k, p.x_stride());
  const Matrix w = as_matrix(p.w.values(static_cast<size_t>(n * k)), n, k, k);
  const Matrix product = x * w.transpose();
  const Matrix sizes = x.cwiseAbs() * w.cwiseAbs().transpose();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<size_t>(r * p.out_stride() + j);
      const double rest = std::fabs(p.bias[static_cast<size_t>(j)]) + std::fabs(p.residual[at]);
      // Each of the k products and k + 2 sums rounds by at most half an ulp (2^-24) of a partial
      // sum, which is at most the sum of magnitudes, in whatever order they are added.
      const double bound = static_cast<double>(k + 3) * 0x1p-24 * 2 * (sizes(r, j) + rest);
      const double want = product(r, j) + p.bias[static_cast<size_t>(j)] + p.residual[at];
      ASSERT_NEAR(got[at], want, bound) << r << ", " << j;
    }
    for (int64_t j = n; j < p.out_stride(); ++j) {
      const auto at = static_cast<size_t>(r * p.out_stride() + j);
      ASSERT_EQ(got[at], p.residual[at]) << "padding of out was written";
    }
  }
}

TEST(Matmul, AgreesWithDoublePrecisionAtOddSizesAndAlignments) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const Pair pair : kPairs) {
      size_t shift = 0;
      for (const int64_t rows : {1, 2, 5, 7, 13})
        for (const int64_t n : {1, 3, 7, 64, 65})
          for (const int64_t k : {1, 7, 8, 15, 31, 32, 33, 63, 64, 65, 200})
            expect_near_oracle(*set, pair, rows, n, k, shift++ % 5);
    }
  }
}

TEST(Matmul, AgreesWithDoublePrecisionForALongRow) {
  for (const Kernels* set : available_kernel_sets())
    for (const Pair pair : kPairs) expect_near_oracle(*set, pair, 3, 6, 9001, 1);
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST(Matmul, GivesTheSameBitsAtAnyThreadCount) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const Pair pair : kPairs) {
      // Few rows split by columns, few columns by rows.
      for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{1, 301}, {29, 61}, {83, 5}}) {
        SCOPED_TRACE(label(*set, pair, rows, n, 577));
        Problem p(*set, pair, rows, n, 577, 3);
        const std::vector<float> one = p.run(*set, 1);
        for (const int threads : {2, 3, 7}) expect_same_bits(one, p.run(*set, threads));
      }
    }
  }
}

TEST(Matmul, GivesARowTheSameBitsAloneAndInAnyCompany) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const Pair pair : kPairs) {
      for (const int64_t k : {5, 64, 101}) {
        SCOPED_TRACE(label(*set, pair, 17, 11, k));
        Problem p(*set, pair, 17, 11, k);
        const std::vector<float> all = p.run(*set, 2);
        // Every cut of the rows in two, and every single element.
        for (int64_t cut = 0; cut <= p.rows; ++cut) {
          const std::vector<float> head = p.run(*set, 1, 0, cut, 0, p.n);
          const std::vector<float> tail = p.run(*set, 1, cut, p.rows, 0, p.n);
          const auto middle = static_cast<std::ptrdiff_t>(cut * p.out_stride());
          std::vector<float> joined(head.begin(), head.begin() + middle);
          joined.insert(joined.end(), tail.begin() + middle, tail.end());
          expect_same_bits(all, joined);
        }
        for (int64_t r = 0; r < p.rows; ++r) {
          for (int64_t j = 0; j < p.n; ++j) {
            const auto at = static_cast<size_t>(r * p.out_stride() + j);
            ASSERT_EQ(p.run(*set, 1, r, r + 1, j, j + 1)[at], all[at]);
          }
        }
      }
    }
  }
}

void expect_rows_as_alone(const Kernels& set, const Pair& pair, Problem& p, int threads,
                          std::initializer_list<int64_t> rows) {
  const std::vector<float> all = p.run(set, threads);
  for (const int64_t r : rows) {
    const std::vector<float> alone = p.run(set, 1, r, r + 1, 0, p.n);
    for (int64_t j = 0; j < p.n; ++j) {
      const auto at = static_cast<size_t>(r * p.out_stride() + j);
      ASSERT_EQ(alone[at], all[at]) << label(set, pair, r, j, p.k);
    }
  }
}

TEST(Matmul, GivesTheSameBitsForRowsOfManyBlocks) {
  // More rows than one block of x in the L2 cache holds.
  for (const Kernels* set : available_kernel_sets()) {
    if (std::string(set->name) == "reference") continue;
    for (const Pair pair : kPairs) {
      Problem p(*set, pair, 403, 9, 1100);
      expect_rows_as_alone(*set, pair, p, 2, {0, 59, 60, 113, 199, 402});
    }
  }
}

TEST(Matmul, GivesTheSameBitsForManyRowsAsForOne) {
  // So many rows that w is widened for all of them at once, and columns beside those.
  for (const Kernels* set : available_kernel_sets()) {
    for (const Pair pair : kPairs) {
      Problem p(*set, pair, 83, 71, 301);
      expect_rows_as_alone(*set, pair, p, 1, {0, 41, 81, 82});
    }
  }
}

// The order over K that docs/numerics.md states, spelled out one operation at a time.
float tree(std::vector<float> lanes) {
  for (size_t half = lanes.size() / 2; half >= 4; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

float documented_sum(const std::string& set, const float* x, const float* w, int64_t k) {
  if (set == "reference") {
    float sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += x[i] * w[i];
    return sum;
  }
  std::vector<float> lanes(set == "avx2" ? 8 : 16, 0.0f);
  for (int64_t i = 0; i < k; ++i) {
    float& lane = lanes[static_cast<size_t>(i) % lanes.size()];
    lane = std::fma(x[i], w[i], lane);
  }
  return tree(lanes);
}

// VDPBF16PS on numbers that are not subnormal: of each pair of a lane, the odd element first.
float documented_bf16_sum(const float* x, const float* w, int64_t k) {
  std::vector<float> lanes(16, 0.0f);
  for (int64_t i = 0; i < k; i += 2) {
    float& lane = lanes[static_cast<size_t>(i / 2) % lanes.size()];
    if (i + 1 < k) lane = std::fma(x[i + 1], w[i + 1], lane);
    lane = std::fma(x[i], w[i], lane);
  }
  return tree(lanes);
}

// TDPBF16PS, likewise: in each step of 32 the first elements of the pairs, and the second ones.
float documented_amx_sum(const float* x, const float* w, int64_t k) {
  float sum = 0;
  for (int64_t step = 0; step < k; step += 32) {
    float first = 0, second = 0;
    for (int64_t i = step; i < std::min(k, step + 32); i += 2) {
      first = std::fma(x[i], w[i], first);
      if (i + 1 < k) second = std::fma(x[i + 1], w[i + 1], second);
    }
    sum += first + second;
  }
  return sum;
}

float documented_sum_of(const Kernels& set, bool dot, const float* x, const float* w, int64_t k) {
  if (!dot) return documented_sum(set.name, x, w, k);
  return std::string(set.name) == "amx_bf16" ? documented_amx_sum(x, w, k)
                                             : documented_bf16_sum(x, w, k);
}

TEST(Matmul, AddsInTheDocumentedOrder) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const Pair pair : kPairs) {
      const bool dot = set->matmul_input(pair.compute, pair.weight) == DType::kBF16;
      for (const int64_t k : {1, 7, 16, 100, 577}) {
        Problem p(*set, pair, 7, 5, k);
        const std::vector<float> got = p.run(*set);
        const auto x = p.x.values(static_cast<size_t>(p.rows * p.x_stride()));
        const auto w = p.w.values(static_cast<size_t>(p.n * p.k));
        for (int64_t r = 0; r < p.rows; ++r) {
          for (int64_t j = 0; j < p.n; ++j) {
            const auto at = static_cast<size_t>(r * p.out_stride() + j);
            const float* row = &x[static_cast<size_t>(r * p.x_stride())];
            const float* col = &w[static_cast<size_t>(j * k)];
            const float sum = documented_sum_of(*set, dot, row, col, k);
            const float want = p.residual[at] + (sum + p.bias[static_cast<size_t>(j)]);
            ASSERT_EQ(got[at], want) << label(*set, pair, r, j, k);
          }
        }
      }
    }
  }
}

TEST(Matmul, OfNothingIsBiasPlusResidual) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const Pair pair : kPairs) {
      Problem p(*set, pair, 2, 5, 0);
      const std::vector<float> got = p.run(*set);
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t j = 0; j < 5; ++j) {
          const auto at = static_cast<size_t>(r * p.out_stride() + j);
          EXPECT_EQ(got[at], p.residual[at] + p.bias[static_cast<size_t>(j)]);
        }
      }
      Problem none(*set, pair, 0, 5, 3);
      EXPECT_NO_THROW(none.run(*set, 2));
    }
  }
}

TEST(Matmul, KeepsANaNInItsOwnRow) {
  for (const Kernels* set : available_kernel_sets()) {
    KernelExec machine(*set);
    std::vector<float> x = random_floats(120, 5), w = random_floats(160, 6), out(12);
    x[40 + 39] = kNaN;
    MatmulArgs args;
    args.out = TensorView::contiguous(out.data(), DType::kF32, Shape{3, 4});
    args.x = TensorView::contiguous(x.data(), DType::kF32, Shape{3, 40});
    args.w = TensorView::contiguous(w.data(), DType::kF32, Shape{4, 40});
    set->matmul(machine.exec(), {&args, 1});
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(out[i]), i / 4 == 1) << set->name << i;
  }
}

}  // namespace
}  // namespace larder
