#include "larder/cache/quant_row.h"

#include <algorithm>

#include "larder/cache/stored_float.h"

namespace larder {

void FlushScratch::grow(size_t bytes) {
  if (bytes <= buffer_.size()) return;
  buffer_ = Buffer();
  buffer_ = Buffer(allocator_, bytes, "scratch");
}

void FlushScratch::release() noexcept {
  if (--holders_ == 0) buffer_ = Buffer();
}

std::byte* QuantRow::exact_at(const QuantLayout& layout, int which, int64_t index,
                              int32_t head) const {
  const int64_t slot = exact_begin + index;
  const auto block = static_cast<size_t>(slot / QuantLayout::kExactBlock);
  return exact[block]->data() + which * layout.exact_side_bytes + head * layout.exact_head_bytes +
         slot % QuantLayout::kExactBlock * layout.exact_token_bytes;
}

std::byte* QuantRow::codes_at(const QuantLayout& layout, int which, int64_t token,
                              int32_t head) const {
  const QuantSideLayout& side = layout.side(which);
  return codes[static_cast<size_t>(token / layout.block_size)]->data() + side.codes_at +
         head * side.head_stride + token % layout.block_size * side.code_bytes;
}

std::byte* QuantRow::scales_at(const QuantLayout& layout, int which, int64_t token,
                               int32_t head) const {
  const QuantSideLayout& side = layout.side(which);
  return codes[static_cast<size_t>(token / layout.block_size)]->data() + side.scale_at +
         head * side.param_head_stride +
         token % layout.block_size / side.token_group * side.param_token_stride;
}

std::byte* QuantRow::zeros_at(const QuantLayout& layout, int which, int64_t token,
                              int32_t head) const {
  const QuantSideLayout& side = layout.side(which);
  return scales_at(layout, which, token, head) + (side.zero_at - side.scale_at);
}

namespace {

// The numbers that codes stand for, channel after channel; at(d) is the index of its parameters.
template <class At>
void load_codes(const QuantLayout& layout, const Quantizer& quantizer, const std::byte* codes,
                const std::byte* scales, const std::byte* zeros, float* out, const At& at) {
  const auto size = static_cast<int64_t>(dtype_size(layout.dtype));
  for (int32_t d = 0; d < layout.head_dim; ++d) {
    const int64_t offset = at(d) * size;
    const uint8_t code = code_at(codes, d, quantizer.bits);
    out[d] = dequantize(quantizer, code, load_stored(scales + offset, layout.dtype),
                        load_stored(zeros + offset, layout.dtype));
  }
}

}  // namespace

void QuantRow::load(const QuantLayout& layout, int which, int64_t token, int32_t head,
                    float* out) const {
  const QuantSideLayout& side = layout.side(which);
  if (token >= quantized) {
    const std::byte* from = exact_at(layout, which, token - quantized, head);
    const auto size = static_cast<int64_t>(dtype_size(layout.dtype));
    for (int32_t d = 0; d < layout.head_dim; ++d)
      out[d] = load_stored(from + d * size, layout.dtype);
  } else if (side.aligned) {
    load_codes(layout, side.quantizer, codes_at(layout, which, token, head),
               scales_at(layout, which, token, head), zeros_at(layout, which, token, head), out,
               [&](int32_t d) { return d / side.channel_group; });
  } else {
    const FlatGroups groups(side.quantizer, layout.elements(flat_tokens), layout.head_dim);
    const int64_t first = (head * flat_tokens + token) * layout.head_dim;
    load_codes(layout, side.quantizer, codes_at(layout, which, token, head),
               flat->data() + layout.flat_scale_at(which, flat_tokens),
               flat->data() + layout.flat_zero_at(which, flat_tokens), out,
               [&](int32_t d) { return groups.of(first + d); });
  }
}

void QuantRow::trim(const QuantLayout& layout) noexcept {
  if (exact_len == 0) exact_begin = 0;
  const int64_t end = exact_len == 0 ? 0 : exact_begin + exact_len;
  const auto need =
      static_cast<size_t>((end + QuantLayout::kExactBlock - 1) / QuantLayout::kExactBlock);
  while (exact.size() > need) exact.pop_back();
  while (codes.size() > static_cast<size_t>(layout.blocks_for(quantized))) codes.pop_back();
  if (quantized == 0) flat.reset(), flat_tokens = 0;
}

void QuantRow::crop(const QuantLayout& layout, int64_t len) noexcept {
  len = std::max<int64_t>(len, 0);
  exact_len = std::clamp<int64_t>(len - quantized, 0, exact_len);
  quantized = std::min(quantized, len);
  trim(layout);
}

}  // namespace larder
