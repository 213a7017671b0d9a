// What running a kernel needs, passed by reference: nothing below tools/ reads the environment or
// global state.
#pragma once

#include "larder/tensor/arena.h"
#include "larder/tensor/thread_pool.h"

namespace larder {

struct Kernels;

// One generation's own machinery. Two generations on one model have two of these and share nothing
// that changes.
struct Exec {
  const Kernels& kernels;
  ThreadPool& threads;
  Arena& scratch;
};

}  // namespace larder
