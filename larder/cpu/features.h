// What a processor can do, as far as kernel sets ask, apart from asking it: so that tests can
// pretend to be another one.
#pragma once

#include <span>

#include "larder/tensor/kernels.h"

namespace larder::cpu {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C: from Haswell on
  bool avx512 = false;  // F, BW, DQ and VL: from Skylake servers on
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;  // and this process may use tiles
};

CpuFeatures cpu_features();  // of this machine

// The sets that such a machine runs, slowest first. Each needs what the one before it needs.
std::span<const Kernels* const> kernel_sets_for(const CpuFeatures& has);

}  // namespace larder::cpu
