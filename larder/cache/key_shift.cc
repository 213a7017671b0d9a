#include "larder/cache/key_shift.h"

#include <cstring>

#include "larder/base/error.h"

namespace larder {
namespace {

struct Stored {
  DType dtype;
  std::byte* data;

  float read(size_t index) const noexcept {
    if (dtype == DType::kF32) return at<float>(index);
    return dtype == DType::kF16 ? f16_to_f32(at<uint16_t>(index))
                                : bf16_to_f32(at<uint16_t>(index));
  }
  void write(size_t index, float value) const noexcept {
    if (dtype == DType::kF32) return put(index, value);
    put(index, dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value));
  }

 private:
  template <class T>
  T at(size_t index) const noexcept {
    T value;
    std::memcpy(&value, data + index * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void put(size_t index, T value) const noexcept {
    std::memcpy(data + index * sizeof(T), &value, sizeof(T));
  }
};

}  // namespace

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
  const Stored stored{dtype, key};
  const size_t half = cos.size();
  for (size_t i = 0; i < half; ++i) {
    const float a = stored.read(i), b = stored.read(i + half);
    stored.write(i, a * cos[i] - b * sin[i]);
    stored.write(i + half, b * cos[i] + a * sin[i]);
  }
}

}  // namespace larder
