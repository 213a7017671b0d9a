#include "larder/cpu/reference/element.h"
#include "larder/cpu/reference/reference.h"

namespace larder::cpu::reference {

DType matmul_input(DType, DType) { return DType::kF32; }

size_t matmul_room(int64_t, int64_t, DType, DType) { return 0; }

namespace {

// The sum runs over k in order, in f32, each product rounded before it is added.
void matmul_one(const MatmulArgs& args) {
  const int64_t rows = args.x.shape[0], k = args.x.shape[1], n = args.w.shape[0];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += read_element(args.x.data, args.x.dtype, r * args.x.stride[0] + i) *
               read_element(args.w.data, args.w.dtype, j * k + i);
      if (args.bias) sum += args.bias[j];
      const int64_t at = r * args.out.stride[0] + j;
      if (args.residual) sum = args.residual[at] + sum;
      args.out.as<float>()[at] = sum;
    }
  }
}

}  // namespace

void matmul(const Exec&, std::span<const MatmulArgs> products) {
  for (const MatmulArgs& args : products) matmul_one(args);
}

}  // namespace larder::cpu::reference
