// Which kernel sets this machine can run, asked of the processor at every call: nothing is cached.
#include <array>
#include <vector>

#include "larder/base/error.h"
#include "larder/cpu/features.h"
#include "larder/cpu/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace larder {
namespace cpu {
namespace {

constexpr std::array kTables = {
    &kReferenceKernels,
#if defined(__x86_64__)
    &kAvx2Kernels,      &kAvx512Kernels, &kAvx512VnniKernels, &kAvx512Bf16Kernels, &kAmxBf16Kernels,
#endif
};

#if defined(__x86_64__)
// Linux gives a process room for the contents of tiles only after it has asked for it (since 5.16;
// Documentation/arch/x86/xstate.rst). Asking again changes nothing. It says no where a signal
// handler's stack is too small to save them.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kTileData) == 0;
#else
  return false;
#endif
}

bool has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0 &&
         (edx & kAmxTile) != 0;
}
#endif

}  // namespace

// __builtin_cpu_supports also asks whether the operating system keeps the wide registers.
CpuFeatures cpu_features() {
  CpuFeatures has;
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // clang's builtin does not know f16c.
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  has.avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  has.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  has.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  has.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  has.amx_bf16 = has_amx_bf16() && may_use_tiles();
#endif
  return has;
}

std::span<const Kernels* const> kernel_sets_for(const CpuFeatures& has) {
  size_t sets = 1;
  for (const bool next : {has.avx2, has.avx512, has.avx512_vnni, has.avx512_bf16, has.amx_bf16}) {
    if (!next || sets == kTables.size()) break;
    ++sets;
  }
  return std::span<const Kernels* const>(kTables).first(sets);
}

}  // namespace cpu

std::span<const Kernels* const> available_kernel_sets() {
  return cpu::kernel_sets_for(cpu::cpu_features());
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
