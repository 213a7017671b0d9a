// The quantizers of transformers' QuantizedCache, as pure functions of a flat tensor: codes and
// their parameters, with every operation rounded as there.
//   quanto  min and max of a group; all arithmetic in the tensor's dtype
//   hqq     half-quadratic optimisation of the zero point (Badri and Shaji 2023); f32, the
//           parameters rounded to the tensor's dtype
// A group that holds a NaN or an infinity becomes NaN as a whole (scale and zero NaN, codes 0); no
// other group notices. Groups of one value and groups far from zero come back within half a step.
#pragma once

#include <cstdint>

#include "larder/tensor/kv_view.h"
#include "larder/tensor/packed_codes.h"

namespace larder {

enum class QuantMethod : uint8_t { kQuanto, kHqq };

struct Quantizer {
  QuantMethod method = QuantMethod::kQuanto;
  int32_t bits = 4;           // quanto 2, 4; hqq 1, 2, 3, 4, 8
  int32_t axis = 0;           // quanto 0, -1; hqq 0, 1
  int32_t group_size = 64;    // elements; rows of the last dimension for quanto axis -1
  DType dtype = DType::kF32;  // f32, f16, bf16: of the values and of the parameters

  KVForm form() const {
    return method == QuantMethod::kQuanto ? KVForm::kScaleShift : KVForm::kZeroScale;
  }
  KVOrder order() const;  // one of the flat ones
  int32_t max_code() const { return (1 << bits) - 1; }
};

// Throws Error, listing what is allowed, for bits and axes that the method does not have and for
// group sizes that are not positive. `what` begins the message: "keys".
void check_quantizer(const Quantizer& quantizer, const char* what);

// A tensor of `count` elements whose last dimension is `last_dim`. Its groups are walked as
// start, start + stride, ..., group_size elements each.
struct FlatGroups {
  FlatGroups(const Quantizer& quantizer, int64_t count, int64_t last_dim);
  int64_t start(int64_t group) const;
  int64_t of(int64_t element) const;  // the group that an element is in

  int64_t groups = 0, stride = 1;

 private:
  KVOrder order_;
  int64_t size_, last_dim_, per_channel_;
};

// x: [count] f32 holding values of quantizer.dtype -> codes [count], one a byte, in x's order;
// scale and zero [groups] f32 holding values of the dtype (zero is quanto's shift). Needs: whole
// groups.
void quantize(const Quantizer& quantizer, const float* x, int64_t count, int64_t last_dim,
              uint8_t* codes, float* scale, float* zero);

// The value that a code stands for, rounded to the dtype after every operation. Finite whenever its
// parameters are: what would pass the largest number of the dtype is that number.
float dequantize(const Quantizer& quantizer, uint8_t code, float scale, float zero);

}  // namespace larder
