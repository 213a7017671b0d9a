// An Exec with everything it borrows, for tests.
#pragma once

#include "larder/tensor/exec.h"
#include "larder/tensor/kernels.h"

namespace larder::test {

struct Machine {
  explicit Machine(int num_threads = 1, const Kernels& set = reference_kernels())
      : scratch(host), threads(num_threads), exec{set, threads, scratch} {}
  HostAllocator host;
  Arena scratch;
  ThreadPool threads;
  Exec exec;
};

}  // namespace larder::test
