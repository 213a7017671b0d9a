#include "tools/bench/machine.h"

#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace larder::bench {
namespace {

// Sums go here so that no read is optimised away.
std::atomic<uint64_t> sink;

#if defined(__x86_64__)
#define LARDER_BENCH_AVX512 __attribute__((target("avx512f")))
#define LARDER_BENCH_BF16 __attribute__((target("avx512f,avx512bf16"), noinline))

LARDER_BENCH_AVX512 uint64_t read_avx512(const char* p, size_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
  }
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
  return lanes[0] + lanes[7];
}

// The empty asm keeps each product where it is: the loop is nothing but VDPBF16PS.
#define LARDER_BENCH_DOT(r)      \
  r = _mm512_dpbf16_ps(r, v, v); \
  asm volatile("" : "+v"(r))

LARDER_BENCH_BF16 void dot_rounds(int64_t rounds) {
  const __m512bh v = (__m512bh)_mm512_set1_epi32(0x3F803F80);
  __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a, e = a, f = a;
  __m512 g = a, h = a, i = a, j = a, k = a, l = a;
  for (int64_t n = 0; n < rounds; ++n) {
    LARDER_BENCH_DOT(a);
    LARDER_BENCH_DOT(b);
    LARDER_BENCH_DOT(c);
    LARDER_BENCH_DOT(d);
    LARDER_BENCH_DOT(e);
    LARDER_BENCH_DOT(f);
    LARDER_BENCH_DOT(g);
    LARDER_BENCH_DOT(h);
    LARDER_BENCH_DOT(i);
    LARDER_BENCH_DOT(j);
    LARDER_BENCH_DOT(k);
    LARDER_BENCH_DOT(l);
  }
}
#endif

uint64_t read_plain(const char* p, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, p + i, 8);
    sum += word;
  }
  return sum;
}

uint64_t read_share(const char* p, size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512(p, bytes);
#endif
  return read_plain(p, bytes);
}

}  // namespace

void read_bytes(ThreadPool& threads, const void* data, size_t bytes) {
  threads.parallel_for(static_cast<int64_t>(bytes), [&](int64_t begin, int64_t end, int) {
    sink += read_share(static_cast<const char*>(data) + begin, static_cast<size_t>(end - begin));
  });
}

bool run_bf16_dot(ThreadPool& threads, int64_t rounds) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  threads.parallel_for(threads.size(), [&](int64_t, int64_t, int) { dot_rounds(rounds); });
  return true;
#else
  (void)threads, (void)rounds;
  return false;
#endif
}

Tensor filled(Allocator& allocator, const Shape& shape, DType dtype) {
  Tensor tensor(allocator, shape, dtype, "bench");
  uint32_t state = 1;
  float chunk[256];
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  for (int64_t i = 0; i < shape.count(); i += 256) {
    for (float& value : chunk) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-32f;
    }
    const int64_t count = std::min<int64_t>(256, shape.count() - i);
    reference_kernels().store(tensor.view().bytes() + i * size, dtype, chunk, count);
  }
  return tensor;
}

std::vector<int> thread_counts() {
  const int all = choose_threads(0);
  return all > 1 ? std::vector<int>{1, all} : std::vector<int>{1};
}

}  // namespace larder::bench
