#if defined(__AVX512F__)
#include "larder/cpu/simd/attend-inl.h"
#include "larder/cpu/simd/tile_avx512.h"

namespace larder::cpu {
namespace {

struct AttendAvx512 : TileAvx512 {
  static V operand(V v) { return v; }
  static V load_query(const float* q, int64_t d) { return V::load(q + d); }
  static V multiply_add(V a, V b, V c) { return fma(a, b, c); }
};

}  // namespace

constinit const AttendOps kAttendAvx512 = make_attend_ops<AttendAvx512>();

}  // namespace larder::cpu
#endif
