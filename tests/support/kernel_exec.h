// What a test needs to call kernels: one set, some threads, scratch.
#pragma once

#include <string>

#include "larder/tensor/exec.h"
#include "larder/tensor/kernels.h"

namespace larder::test {

// Owns the pool and the arena that exec() refers to; not movable.
class KernelExec {
 public:
  explicit KernelExec(const Kernels& kernels, int threads = 1)
      : kernels_(kernels), pool_(threads), scratch_(allocator_) {}
  KernelExec(const KernelExec&) = delete;
  KernelExec& operator=(const KernelExec&) = delete;

  Exec exec() { return {kernels_, pool_, scratch_}; }
  Arena& scratch() { return scratch_; }

 private:
  const Kernels& kernels_;
  HostAllocator allocator_;
  ThreadPool pool_;
  Arena scratch_;
};

}  // namespace larder::test
