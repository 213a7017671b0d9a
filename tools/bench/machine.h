// What the machine can do at best, measured beside each kernel in the same run, so that a busy
// machine slows both and their ratio still says something.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "larder/tensor/exec.h"
#include "larder/tensor/kernels.h"

namespace larder::bench {

// Timed runs of each benchmark; medians are reported.
constexpr int kIterations = 15;

// `run` as a benchmark that times itself (SetIterationTime).
template <class Function>
void register_timed(const std::string& name, benchmark::TimeUnit unit, Function run,
                    int iterations = kIterations) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(run))
      ->UseManualTime()
      ->Iterations(iterations)
      ->Unit(unit);
}

// Seconds that one call takes.
template <class Function>
double seconds(Function&& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Reads `bytes` bytes once, a contiguous share for each thread: the bare bandwidth.
void read_bytes(ThreadPool& threads, const void* data, size_t bytes);

// Floating-point operations that `count` rounds of the loop below do on each thread.
constexpr double kPeakFlopsPerRound = 12 * 64;
// Runs VDPBF16PS on twelve registers and nothing else. False where the processor lacks it.
bool run_bf16_dot(ThreadPool& threads, int64_t rounds);

// A set, threads and scratch for one benchmark.
struct Machine {
  Machine(const Kernels& set, int num_threads)
      : kernels(set), threads(num_threads), scratch(allocator) {}
  Exec exec() { return {kernels, threads, scratch}; }

  const Kernels& kernels;
  HostAllocator allocator;
  ThreadPool threads;
  Arena scratch;
};

// `count` elements of `dtype`, of a spread of small values, in memory of their own.
Tensor filled(Allocator& allocator, const Shape& shape, DType dtype);

// 1, and the cores this process may run on.
std::vector<int> thread_counts();

}  // namespace larder::bench
