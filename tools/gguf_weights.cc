#include "tools/gguf_weights.h"

#include <cstring>

#include "larder/base/error.h"
#include "larder/tensor/dtype.h"
#include "larder/tensor/shape.h"

namespace larder::tools {
namespace {

uint16_t load16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float half_at(const std::byte* p) { return f16_to_f32(load16(p)); }

void plain(GgufType type, const std::byte* in, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    if (type == GgufType::kF32) {
      std::memcpy(&out[i], in + 4 * i, 4);
    } else {
      const uint16_t bits = load16(in + 2 * i);
      out[i] = type == GgufType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }
}

void q8_0(const std::byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * scale;
}

void q4_0(const std::byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 16; ++i) {
    const auto byte = static_cast<int>(in[2 + i]);
    out[i] = static_cast<float>((byte & 15) - 8) * scale;
    out[16 + i] = static_cast<float>((byte >> 4) - 8) * scale;
  }
}

void q4_1(const std::byte* in, float* out) {
  const float scale = half_at(in), minimum = half_at(in + 2);
  for (int i = 0; i < 16; ++i) {
    const auto byte = static_cast<int>(in[4 + i]);
    out[i] = static_cast<float>(byte & 15) * scale + minimum;
    out[16 + i] = static_cast<float>(byte >> 4) * scale + minimum;
  }
}

}  // namespace

void dequantize_row(const GgufTensor& tensor, int64_t row, std::span<float> out) {
  const GgufBlock block = gguf_block(tensor.type);
  const int64_t blocks = static_cast<int64_t>(out.size()) / block.elements;
  const std::byte* in = tensor.data + row * blocks * block.bytes;
  if (block.elements == 1) return plain(tensor.type, in, out);
  const auto one = tensor.type == GgufType::kQ80   ? q8_0
                   : tensor.type == GgufType::kQ40 ? q4_0
                                                   : q4_1;
  for (int64_t i = 0; i < blocks; ++i) one(in + i * block.bytes, out.data() + i * block.elements);
}

std::vector<uint16_t> to_bf16(const GgufTensor& tensor, int64_t rope_heads) {
  const Shape shape(tensor.shape);
  // A vector (a bias) is a column of rows of one element where its rows are to be put in order.
  const bool column = shape.rank() < 2 && rope_heads > 0;
  const int64_t width = column ? 1 : shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  const int64_t rows = shape.count() / width;
  LARDER_ASSERT(rope_heads == 0 || rows % (2 * rope_heads) == 0);
  LARDER_ASSERT(width % gguf_block(tensor.type).elements == 0);
  const int64_t head = rope_heads > 0 ? rows / rope_heads : 0;
  std::vector<uint16_t> out(static_cast<size_t>(shape.count()));
  std::vector<float> values(static_cast<size_t>(width));
  for (int64_t row = 0; row < rows; ++row) {
    int64_t from = row;
    if (rope_heads > 0) {
      const int64_t channel = row % head, half = head / 2;
      from = row - channel + (channel < half ? 2 * channel : 2 * (channel - half) + 1);
    }
    dequantize_row(tensor, from, values);
    uint16_t* at = out.data() + row * width;
    for (const float value : values) *at++ = f32_to_bf16(value);
  }
  return out;
}

}  // namespace larder::tools
