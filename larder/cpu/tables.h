// The kernel tables of this build. Which of them a machine can run, larder/cpu/registry.cc finds.
#pragma once

#include "larder/tensor/kernels.h"

namespace larder::cpu {

extern const Kernels kReferenceKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels, kAvx512VnniKernels, kAvx512Bf16Kernels,
    kAmxBf16Kernels;
#endif

}  // namespace larder::cpu
