// store, load and round_rows: every 16-bit value, and the rounding between them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/kernel_exec.h"
#include "tests/support/random_floats.h"

namespace larder {
namespace {

float widen(DType dtype, uint16_t bits) {
  return dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

uint16_t narrow(DType dtype, float value) {
  return dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
}

bool is_nan(DType dtype, uint16_t bits) { return std::isnan(widen(dtype, bits)); }

TEST(Load, WidensEvery16BitValueExactly) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> out(all.size());
  for (const Kernels* set : available_kernel_sets()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      set->load(out.data(), all.data(), dtype, 65536);
      for (size_t i = 0; i < all.size(); ++i) {
        const float want = widen(dtype, all[i]);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(out[i])) << set->name << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(want)) << set->name;
        }
      }
    }
  }
}

// Every 16-bit value and its neighbours in f32: a bit up and down, halfway to the next, and around.
std::vector<float> rounding_cases(DType dtype) {
  std::vector<float> values;
  const uint32_t half = dtype == DType::kBF16 ? 0x8000u : 0x1000u;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto base = std::bit_cast<uint32_t>(widen(dtype, static_cast<uint16_t>(bits)));
    for (const uint32_t step : {0u, 1u, ~0u, half - 1, half, half + 1, 2 * half - 1})
      values.push_back(std::bit_cast<float>(base + step));
  }
  for (const float more :
       {65519.9f, 65520.0f, 3.39e38f, 0x1p-25f, 0x1.8p-25f, 0x1p-149f, 0x1p-140f})
    values.push_back(more);
  return values;
}

TEST(Store, RoundsToNearestEvenAndKeepsNaNs) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::vector<float> values = rounding_cases(dtype);
    std::vector<uint16_t> want(values.size()), out(values.size());
    for (size_t i = 0; i < values.size(); ++i) want[i] = narrow(dtype, values[i]);
    for (const Kernels* set : available_kernel_sets()) {
      set->store(out.data(), dtype, values.data(), static_cast<int64_t>(values.size()));
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) {
          ASSERT_TRUE(is_nan(dtype, out[i])) << set->name << " " << values[i];
        } else {
          ASSERT_EQ(out[i], want[i]) << set->name << " " << values[i];
        }
      }
    }
  }
}

TEST(Store, WritesExactlyItsElementsAtAnyAlignment) {
  const std::vector<float> values = test::random_floats(70, 1);
  for (const Kernels* set : available_kernel_sets()) {
    for (const DType dtype :
         {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
      for (const int64_t count : {0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65}) {
        const size_t bytes = static_cast<size_t>(count) * dtype_size(dtype);
        std::vector<uint8_t> want(bytes), out(bytes + 64, 0xAB);
        reference_kernels().store(want.data(), dtype, values.data(), count);
        set->store(out.data() + 3, dtype, values.data(), count);
        EXPECT_TRUE(bytes == 0 || std::memcmp(out.data() + 3, want.data(), bytes) == 0);
        for (size_t i = 0; i < out.size(); ++i) {
          const bool inside = i >= 3 && i < 3 + bytes;
          ASSERT_TRUE(inside || out[i] == 0xAB) << set->name << " " << count;
        }
        std::vector<float> back(static_cast<size_t>(count) + 1, -1.0f);
        set->load(back.data(), out.data() + 3, dtype, count);
        for (int64_t i = 0; i < count; ++i) {
          float once = 0;
          reference_kernels().load(&once, want.data() + static_cast<size_t>(i) * dtype_size(dtype),
                                   dtype, 1);
          ASSERT_EQ(back[static_cast<size_t>(i)], once);
        }
        EXPECT_EQ(back.back(), -1.0f);
      }
    }
  }
}

TEST(RoundRows, RoundsToTheComputeTypeWhateverTheOutputType) {
  std::vector<float> values = rounding_cases(DType::kBF16);
  const int64_t n = static_cast<int64_t>(values.size());
  for (const Kernels* set : available_kernel_sets()) {
    test::KernelExec machine(*set, 2);
    const TensorView x = TensorView::contiguous(values.data(), DType::kF32, Shape{1, n});
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<float> out(values.size());
      set->round_rows(machine.exec(), TensorView::contiguous(out.data(), DType::kF32, Shape{1, n}),
                      x, compute);
      for (size_t i = 0; i < values.size(); ++i) {
        const float want =
            compute == DType::kF32 ? values[i] : widen(compute, narrow(compute, values[i]));
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(out[i]));
        } else {
          ASSERT_EQ(out[i], want) << set->name << " " << values[i];
        }
      }
    }
    std::vector<uint16_t> narrowed(values.size());
    set->round_rows(machine.exec(),
                    TensorView::contiguous(narrowed.data(), DType::kBF16, Shape{1, n}), x,
                    DType::kBF16);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(is_nan(DType::kBF16, narrowed[i]));
      } else {
        ASSERT_EQ(narrowed[i], f32_to_bf16(values[i]));
      }
    }
  }
}

TEST(RoundRows, RespectsRowStrides) {
  for (const Kernels* set : available_kernel_sets()) {
    test::KernelExec machine(*set);
    std::vector<float> x = test::random_floats(3 * 70, 2);
    std::vector<uint16_t> out(3 * 80, 0x1234);
    TensorView from = TensorView::contiguous(x.data(), DType::kF32, Shape{3, 65});
    TensorView to = TensorView::contiguous(out.data(), DType::kBF16, Shape{3, 65});
    from.stride[0] = 70;
    to.stride[0] = 80;
    set->round_rows(machine.exec(), to, from, DType::kBF16);
    for (size_t r = 0; r < 3; ++r) {
      for (size_t i = 0; i < 80; ++i)
        EXPECT_EQ(out[r * 80 + i], i < 65 ? f32_to_bf16(x[r * 70 + i]) : 0x1234) << set->name;
    }
  }
}

}  // namespace
}  // namespace larder
