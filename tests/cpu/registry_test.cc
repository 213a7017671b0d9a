#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "larder/base/error.h"
#include "larder/tensor/kernels.h"

namespace larder {
namespace {

TEST(KernelSets, StartWithReferenceAndGoUpInOrder) {
  const std::vector<std::string> order = {"reference", "avx2", "avx512", "avx512_vnni",
                                          "avx512_bf16"};
  const auto sets = available_kernel_sets();
  ASSERT_GE(sets.size(), 1u);
  ASSERT_LE(sets.size(), order.size());
  for (size_t i = 0; i < sets.size(); ++i) EXPECT_EQ(sets[i]->name, order[i]);
  EXPECT_EQ(&reference_kernels(), sets[0]);
}

TEST(KernelSets, HaveEveryEntry) {
  for (const Kernels* set : available_kernel_sets()) {
    EXPECT_TRUE(set->matmul_input && set->matmul && set->code_rows && set->matmul_codes &&
                set->round_rows && set->rms_norm && set->rope && set->gate_mul && set->softcap &&
                set->store && set->load && set->attend && set->attend_scratch)
        << set->name;
  }
}

TEST(KernelSets, AreChosenByNameAndTheFastestWithoutOne) {
  for (const Kernels* set : available_kernel_sets()) EXPECT_EQ(&choose_kernels(set->name), set);
  EXPECT_EQ(&choose_kernels(), available_kernel_sets().back());
}

TEST(KernelSets, RefuseAnUnknownNameWithTheListOfKnownOnes) {
  try {
    choose_kernels("avx1024");
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("\"avx1024\""), std::string::npos) << text;
    for (const Kernels* set : available_kernel_sets())
      EXPECT_NE(text.find(set->name), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(KernelSets, WantBf16ActivationsOnlyForTheBf16DotProduct) {
  for (const Kernels* set : available_kernel_sets()) {
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType weight : {DType::kF32, DType::kBF16, DType::kF16}) {
        const bool dot = std::string(set->name) == "avx512_bf16" && compute == DType::kBF16 &&
                         weight == DType::kBF16;
        EXPECT_EQ(set->matmul_input(compute, weight), dot ? DType::kBF16 : DType::kF32);
      }
    }
  }
}

}  // namespace
}  // namespace larder
