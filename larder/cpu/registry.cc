// Which kernel sets this machine can run, asked of the processor at every call: nothing is cached.
#include <array>
#include <vector>

#include "larder/base/error.h"
#include "larder/cpu/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace larder {
namespace cpu {
namespace {

// Slowest first. Each set needs what the one before it needs and more.
constexpr std::array kTables = {
    &kReferenceKernels,
#if defined(__x86_64__)
    &kAvx2Kernels,      &kAvx512Kernels, &kAvx512VnniKernels, &kAvx512Bf16Kernels,
#endif
};

#if defined(__x86_64__)
// __builtin_cpu_supports also asks whether the operating system keeps the wide registers.
bool has_avx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // clang's builtin does not know f16c.
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_vnni() { return __builtin_cpu_supports("avx512vnni"); }

bool has_avx512_bf16() { return __builtin_cpu_supports("avx512bf16"); }
#endif

size_t supported_sets() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!has_avx2()) return 1;
  if (!has_avx512()) return 2;
  if (!has_avx512_vnni()) return 3;
  return has_avx512_bf16() ? 5 : 4;
#else
  return 1;
#endif
}

}  // namespace
}  // namespace cpu

std::span<const Kernels* const> available_kernel_sets() {
  return std::span<const Kernels* const>(cpu::kTables).first(cpu::supported_sets());
}

const Kernels& choose_kernels(std::string_view name) {
  const auto sets = available_kernel_sets();
  if (name.empty()) return *sets.back();
  std::vector<std::string_view> names;
  for (const Kernels* set : sets) {
    if (set->name == name) return *set;
    names.push_back(set->name);
  }
  fail("kernel set ", in_quotes(name),
       " is not available on this machine; use one of: ", join(names, ", "));
}

}  // namespace larder
