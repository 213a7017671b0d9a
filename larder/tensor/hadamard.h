// The normalised Hadamard rotation: H x / sqrt(n), which is its own inverse and keeps dot products.
// Turning K and q alike leaves q.k as it was, and spreads outlier channels before K is quantized
// (QuaRot, arXiv 2404.00456).
#pragma once

#include <cmath>
#include <cstdint>

namespace larder {

// Turns each of `rows` contiguous rows of `dim` floats in place. Needs: dim a power of two.
inline void hadamard(float* x, int64_t rows, int64_t dim) {
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  for (int64_t row = 0; row < rows; ++row, x += dim) {
    for (int64_t half = 1; half < dim; half *= 2) {
      for (int64_t i = 0; i < dim; i += 2 * half) {
        for (int64_t j = i; j < i + half; ++j) {
          const float a = x[j], b = x[j + half];
          x[j] = a + b;
          x[j + half] = a - b;
        }
      }
    }
    for (int64_t i = 0; i < dim; ++i) x[i] *= scale;
  }
}

}  // namespace larder
