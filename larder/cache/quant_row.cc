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

namespace {

void load_aligned(const QuantLayout& layout, const QuantSideLayout& side, const std::byte* block,
                  int64_t slot, int32_t head, float* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(block) + side.codes_at +
                      head * side.head_stride + slot * side.code_bytes;
  const std::byte* params =
      block + head * side.param_head_stride + slot / side.token_group * side.param_token_stride;
  const auto size = static_cast<int64_t>(dtype_size(layout.dtype));
  for (int32_t d = 0; d < layout.head_dim; ++d) {
    const int64_t at = d / side.channel_group * size;
    out[d] = dequantize(side.quantizer, code_at(codes, d, side.quantizer.bits),
                        load_stored(params + side.scale_at + at, layout.dtype),
                        load_stored(params + side.zero_at + at, layout.dtype));
  }
}

void load_flat(const QuantLayout& layout, int which, const QuantRow& row, const std::byte* block,
               int64_t token, int32_t head, float* out) {
  const QuantSideLayout& side = layout.side(which);
  const auto* codes = reinterpret_cast<const uint8_t*>(block) + side.codes_at +
                      head * side.head_stride + token % layout.block_size * side.code_bytes;
  const FlatGroups groups(side.quantizer, layout.elements(row.flat_tokens), layout.head_dim);
  const std::byte* scale = row.flat->data() + layout.flat_scale_at(which, row.flat_tokens);
  const std::byte* zero = row.flat->data() + layout.flat_zero_at(which, row.flat_tokens);
  const auto size = static_cast<int64_t>(dtype_size(layout.dtype));
  const int64_t first = (head * row.flat_tokens + token) * layout.head_dim;
  for (int32_t d = 0; d < layout.head_dim; ++d) {
    const int64_t at = groups.of(first + d) * size;
    out[d] =
        dequantize(side.quantizer, code_at(codes, d, side.quantizer.bits),
                   load_stored(scale + at, layout.dtype), load_stored(zero + at, layout.dtype));
  }
}

}  // namespace

void QuantRow::load(const QuantLayout& layout, int which, int64_t token, int32_t head,
                    float* out) const {
  if (token >= quantized) {
    const std::byte* from = exact_at(layout, which, token - quantized, head);
    const auto size = static_cast<int64_t>(dtype_size(layout.dtype));
    for (int32_t d = 0; d < layout.head_dim; ++d)
      out[d] = load_stored(from + d * size, layout.dtype);
    return;
  }
  const std::byte* block = codes[static_cast<size_t>(token / layout.block_size)]->data();
  if (layout.side(which).aligned) {
    load_aligned(layout, layout.side(which), block, token % layout.block_size, head, out);
  } else {
    load_flat(layout, which, *this, block, token, head, out);
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

QuantFlush QuantFlush::prepare(const QuantLayout& layout, QuantRow& row, int64_t tokens,
                               BlockSource& source) {
  QuantFlush flush;
  flush.quantized = tokens;
  flush.first_block = layout.flush_from(row.quantized) / layout.block_size;
  const auto blocks = static_cast<size_t>(layout.blocks_for(tokens));
  row.codes.reserve(blocks);
  for (auto i = static_cast<size_t>(flush.first_block); i < blocks; ++i) {
    BlockPtr block;
    const bool held = i < row.codes.size();
    if (!held || row.codes[i].use_count() > 1) {
      block = source.make(static_cast<size_t>(layout.block_bytes));
      // The codes of one side may stay where the other's are made anew.
      if (held) source.copy(*block, *row.codes[i], 0, block->size());
    } else {
      row.codes[i]->mark_dirty();
    }
    flush.fresh.push_back(std::move(block));
  }
  if (layout.has_flat()) flush.flat = source.make(static_cast<size_t>(layout.flat_bytes(tokens)));
  return flush;
}

namespace {

// A flush of one side.
struct SideFlush {
  const QuantLayout& layout;
  const QuantFlush& flush;
  const QuantRow& row;
  int which;
  const QuantSideLayout& side = layout.side(which);

  std::byte* block(int64_t token) const {
    const int64_t index = token / layout.block_size;
    const auto fresh = static_cast<size_t>(index - flush.first_block);
    const BlockPtr& made = flush.fresh[fresh];
    return (made ? made : row.codes[static_cast<size_t>(index)])->data();
  }

  // Tokens [first, first + n) as a flat tensor [heads, n, head_dim].
  void quantize_tokens(int64_t first, int64_t n, std::byte* scratch) const {
    const int64_t count = layout.elements(n), groups = side.groups(count);
    auto* x = reinterpret_cast<float*>(scratch);
    float *scale = x + count, *zero = scale + groups;
    auto* codes = reinterpret_cast<uint8_t*>(zero + groups);
    for (int32_t head = 0; head < layout.heads; ++head)
      for (int64_t i = 0; i < n; ++i)
        row.load(layout, which, first + i, head, x + (head * n + i) * layout.head_dim);
    quantize(side.quantizer, x, count, layout.head_dim, codes, scale, zero);
    for (int32_t head = 0; head < layout.heads; ++head) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t slot = (first + i) % layout.block_size;
        pack_codes(codes + (head * n + i) * layout.head_dim, layout.head_dim, side.quantizer.bits,
                   reinterpret_cast<uint8_t*>(block(first + i)) + side.codes_at +
                       head * side.head_stride + slot * side.code_bytes);
      }
    }
    if (side.aligned) {
      store_aligned(first, n, scale, zero);
    } else {
      const auto size = static_cast<int64_t>(dtype_size(layout.dtype));
      std::byte* to = flush.flat->data();
      for (int64_t g = 0; g < groups; ++g) {
        store_stored(to + layout.flat_scale_at(which, n) + g * size, layout.dtype, scale[g]);
        store_stored(to + layout.flat_zero_at(which, n) + g * size, layout.dtype, zero[g]);
      }
    }
  }

  void store_aligned(int64_t first, int64_t n, const float* scale, const float* zero) const {
    const FlatGroups groups(side.quantizer, layout.elements(n), layout.head_dim);
    const auto size = static_cast<int64_t>(dtype_size(layout.dtype));
    for (int32_t head = 0; head < layout.heads; ++head) {
      for (int64_t i = 0; i < n; i += side.token_group) {
        const int64_t slot = (first + i) % layout.block_size;
        std::byte* to = block(first + i) + head * side.param_head_stride +
                        slot / side.token_group * side.param_token_stride;
        for (int32_t d = 0; d < layout.head_dim; d += side.channel_group) {
          const int64_t g = groups.of((head * n + i) * layout.head_dim + d);
          const int64_t at = d / side.channel_group * size;
          store_stored(to + side.scale_at + at, layout.dtype, scale[g]);
          store_stored(to + side.zero_at + at, layout.dtype, zero[g]);
        }
      }
    }
  }
};

// The codes are in; the exact tokens that they stand for go.
void finish(const QuantLayout& layout, QuantFlush& flush, QuantRow& row) noexcept {
  for (size_t i = 0; i < flush.fresh.size(); ++i) {
    const size_t at = static_cast<size_t>(flush.first_block) + i;
    if (at == row.codes.size()) {
      row.codes.push_back(std::move(flush.fresh[i]));  // room was reserved
    } else if (flush.fresh[i]) {
      row.codes[at] = std::move(flush.fresh[i]);
    }
  }
  row.flat = std::move(flush.flat);
  row.flat_tokens = flush.quantized;
  const int64_t gone = flush.quantized - row.quantized;
  row.exact_begin += gone, row.exact_len -= gone;
  row.quantized = flush.quantized;
  const auto blocks = row.exact_begin / QuantLayout::kExactBlock;
  row.exact.erase(row.exact.begin(), row.exact.begin() + blocks);
  row.exact_begin %= QuantLayout::kExactBlock;
  row.trim(layout);
}

}  // namespace

void QuantFlush::run(const QuantLayout& layout, QuantRow& row, std::byte* scratch) noexcept {
  for (int which = 0; which < 2; ++which) {
    const SideFlush part{layout, *this, row, which};
    const int64_t from = layout.flush_from(part.side, row.quantized);
    const int64_t chunk = layout.chunk(part.side, quantized - from);
    for (int64_t first = from; first < quantized; first += chunk)
      part.quantize_tokens(first, chunk, scratch);
  }
  finish(layout, *this, row);
  *this = {};
}

}  // namespace larder
