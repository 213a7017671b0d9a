#include "larder/cache/key_shift.h"

#include "larder/base/error.h"
#include "larder/cache/stored_float.h"

namespace larder {
void check_shift(const ContextShift& shift, int64_t len, int32_t head_dim) {
  if (shift.keep < 0 || shift.discard < 1 || shift.keep > len || shift.discard > len - shift.keep) {
    fail("a context shift that keeps ", shift.keep, " tokens and discards ", shift.discard,
         " on a row of ", len);
  }
  if (shift.cos.size() != shift.sin.size() ||
      2 * shift.cos.size() > static_cast<size_t>(head_dim)) {
    fail("a context shift with ", shift.cos.size(), " cosines and ", shift.sin.size(),
         " sines for keys of head_dim ", head_dim);
  }
}

void turn_key(float* key, std::span<const float> cos, std::span<const float> sin) noexcept {
  const size_t half = cos.size();
  for (size_t i = 0; i < half; ++i) {
    const float a = key[i], b = key[i + half];
    key[i] = a * cos[i] - b * sin[i];
    key[i + half] = b * cos[i] + a * sin[i];
  }
}

void turn_key(std::byte* key, DType dtype, std::span<const float> cos,
              std::span<const float> sin) noexcept {
  const size_t half = cos.size(), size = dtype_size(dtype);
  for (size_t i = 0; i < half; ++i) {
    std::byte *first = key + i * size, *second = first + half * size;
    const float a = load_stored(first, dtype), b = load_stored(second, dtype);
    store_stored(first, dtype, a * cos[i] - b * sin[i]);
    store_stored(second, dtype, b * cos[i] + a * sin[i]);
  }
}

}  // namespace larder
