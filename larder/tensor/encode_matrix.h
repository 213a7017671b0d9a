// Making weights into codes.
#pragma once

#include "larder/tensor/coded_matrix.h"
#include "larder/tensor/tensor.h"
#include "larder/tensor/thread_pool.h"

namespace larder {

// Writes `matrix` ([rows, k], f32, bf16, f16 or f64, contiguous) in codes to `out`, which has
// coded_bytes(format, rows, k) bytes. The codes follow from the row's own numbers, whatever the
// threads and the kernel set. int8: scale = largest |w| / 127. int4: of four pairs of scale
// and minimum, three fitted to their codes by least squares, the one with the smallest squared
// error. A group with a NaN or an infinity stands for NaN.
void encode_matrix(const TensorView& matrix, WeightFormat format, std::byte* out,
                   ThreadPool& threads);

}  // namespace larder
