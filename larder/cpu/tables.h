// The kernel tables of this build. Which of them a machine can run, larder/cpu/registry.cc finds.
#pragma once

#include "larder/tensor/kernels.h"

namespace larder::cpu {

extern const Kernels kReferenceKernels;

}  // namespace larder::cpu
