#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "larder/base/error.h"
#include "larder/cpu/features.h"
#include "larder/tensor/kernels.h"

namespace larder {
namespace {

TEST(KernelSets, StartWithReferenceAndGoUpInOrder) {
  const std::vector<std::string> order = {"reference",   "avx2",        "avx512",
                                          "avx512_vnni", "avx512_bf16", "amx_bf16"};
  const auto sets = available_kernel_sets();
  ASSERT_GE(sets.size(), 1u);
  ASSERT_LE(sets.size(), order.size());
  for (size_t i = 0; i < sets.size(); ++i) EXPECT_EQ(sets[i]->name, order[i]);
  EXPECT_EQ(&reference_kernels(), sets[0]);
}

// Sets above this machine's are in the build all the same; only who asks the processor knows it.
TEST(KernelSets, AreThoseThatTheProcessorCanRunAndNoOther) {
#if defined(__x86_64__)
  const auto fastest = [](const cpu::CpuFeatures& has) {
    return std::string(cpu::kernel_sets_for(has).back()->name);
  };
  EXPECT_EQ(fastest({}), "reference");                             // Sandy Bridge
  EXPECT_EQ(fastest({true}), "avx2");                              // Haswell, Zen 3
  EXPECT_EQ(fastest({true, true}), "avx512");                      // Skylake server
  EXPECT_EQ(fastest({true, true, true}), "avx512_vnni");           // Ice Lake
  EXPECT_EQ(fastest({true, true, true, true}), "avx512_bf16");     // Cooper Lake, Zen 4
  EXPECT_EQ(fastest({true, true, true, true, true}), "amx_bf16");  // Sapphire Rapids
  EXPECT_EQ(fastest({true, true, false, true, true}), "avx512");
  EXPECT_EQ(fastest({true, true, false, true}), "avx512");  // needs all before it
  EXPECT_EQ(fastest({true, false, true, true}), "avx2") << "AVX-512 is switched off";
  EXPECT_EQ(fastest({false, true, true, true}), "reference") << "under an emulator without AVX2";
#endif
  EXPECT_EQ(cpu::kernel_sets_for(cpu::cpu_features()).size(), available_kernel_sets().size());
}

TEST(KernelSets, HaveEveryEntry) {
  for (const Kernels* set : available_kernel_sets()) {
    EXPECT_TRUE(set->matmul_input && set->matmul_room && set->matmul && set->code_rows &&
                set->matmul_codes && set->round_rows && set->rms_norm && set->rope &&
                set->gate_mul && set->softcap && set->store && set->load && set->attend &&
                set->attend_scratch)
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
        const bool has_dot =
            std::string(set->name) == "avx512_bf16" || std::string(set->name) == "amx_bf16";
        const bool dot = has_dot && compute == DType::kBF16 && weight == DType::kBF16;
        EXPECT_EQ(set->matmul_input(compute, weight), dot ? DType::kBF16 : DType::kF32);
      }
    }
  }
}

}  // namespace
}  // namespace larder
