// The tables of the x86 sets. Compiled for every x86: code with wider instructions is reached only
// through kAvx2Ops, kAvx512Ops, matmul_codes_vnni, matmul_bf16_dot and matmul_amx_bf16.
#if defined(__x86_64__)
#include "larder/cpu/simd/kernel_set.h"
#include "larder/cpu/tables.h"

namespace larder::cpu {
namespace {

using Avx512Set = KernelSet<kAvx512Ops, kAttendAvx512>;

DType bf16_matmul_input(DType compute, DType weight) {
  return compute == DType::kBF16 && weight == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

// Whether all keys and values that the step can meet are bf16 or codes: asked of types alone, as
// what a row gives must not depend on which of its segments happen to be empty.
bool can_dot(const AttendArgs& args) {
  if (args.compute != DType::kBF16 || args.kv.head_dim % 32 != 0) return false;
  for (int32_t s = 0; s < args.kv.num_segments; ++s) {
    for (const KVSide* side : {&args.kv.segment[s].k, &args.kv.segment[s].v})
      if (side->dtype != DType::kBF16 && side->quant.bits == 0) return false;
  }
  return true;
}

void bf16_attend(const Exec& exec, const AttendArgs& args) {
  attend_with(can_dot(args) ? kAttendBf16Dot : kAttendAvx512, exec, args);
}

bool is_bf16(const MatmulArgs& args) {
  return args.x.dtype == DType::kBF16 && args.w.dtype == DType::kBF16;
}

// Calls run(products) for each run of products that are alike.
template <class Alike, class Run>
void by_runs(std::span<const MatmulArgs> products, const Alike& alike, const Run& run) {
  while (!products.empty()) {
    size_t count = 1;
    while (count < products.size() && alike(products[0], products[count])) ++count;
    run(products.first(count));
    products = products.subspan(count);
  }
}

// What a product gives must not depend on the company it has: one that the dot product can do is
// always done by it.
void bf16_matmul(const Exec& exec, std::span<const MatmulArgs> products) {
  const auto alike = [](const auto& a, const auto& b) { return is_bf16(a) == is_bf16(b); };
  by_runs(products, alike, [&](std::span<const MatmulArgs> run) {
    if (is_bf16(run[0])) {
      run_matmul(exec, run, matmul_bf16_dot);
    } else {
      Avx512Set::matmul(exec, run);
    }
  });
}

size_t amx_matmul_room(int64_t rows, int64_t k, DType x, DType weight) {
  return x == DType::kBF16 && weight == DType::kBF16 ? tiled_room(rows, k) : 0;
}

// Likewise by tiles, for one x at a time.
void amx_matmul(const Exec& exec, std::span<const MatmulArgs> products) {
  const auto alike = [](const auto& a, const auto& b) {
    return is_bf16(a) == is_bf16(b) && a.x.data == b.x.data && a.x.shape[1] == b.x.shape[1];
  };
  by_runs(products, alike, [&](std::span<const MatmulArgs> run) {
    if (is_bf16(run[0])) {
      run_matmul_tiled(exec, run);
    } else {
      Avx512Set::matmul(exec, run);
    }
  });
}

void vnni_matmul_codes(const Exec& exec, std::span<const MatmulCodesArgs> products) {
  run_matmul_codes(exec, products, matmul_codes_vnni);
}

constexpr Kernels with_vnni(Kernels table) {
  table.matmul_codes = vnni_matmul_codes;
  return table;
}

constexpr Kernels with_bf16_dot(Kernels table) {
  table.matmul_input = bf16_matmul_input;
  table.matmul = bf16_matmul;
  table.attend = bf16_attend;
  return table;
}

constexpr Kernels with_amx(Kernels table) {
  table.matmul_room = amx_matmul_room;
  table.matmul = amx_matmul;
  return table;
}

}  // namespace

constinit const Kernels kAvx2Kernels = KernelSet<kAvx2Ops, kAttendAvx2>::table("avx2");
constinit const Kernels kAvx512Kernels = Avx512Set::table("avx512");
constinit const Kernels kAvx512VnniKernels = with_vnni(Avx512Set::table("avx512_vnni"));
// round_rows stays the avx512 set's: VCVTNEPS2BF16 would make subnormal numbers zero.
constinit const Kernels kAvx512Bf16Kernels =
    with_bf16_dot(with_vnni(Avx512Set::table("avx512_bf16")));
constinit const Kernels kAmxBf16Kernels =
    with_amx(with_bf16_dot(with_vnni(Avx512Set::table("amx_bf16"))));

}  // namespace larder::cpu
#endif
