// Making codes of a row's tokens.
#include "larder/cache/quant_row.h"
#include "larder/cache/stored_float.h"

namespace larder {

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

// Codes of one side on their way into blocks.
struct SideWriter {
  const QuantLayout& layout;
  const QuantFlush& flush;
  const QuantRow& row;
  int which = 0;
  const QuantSideLayout& side = layout.side(which);
  const int64_t number_bytes = static_cast<int64_t>(dtype_size(layout.dtype));

  std::byte* block(int64_t token) const {
    const int64_t index = token / layout.block_size;
    const BlockPtr& made = flush.fresh[static_cast<size_t>(index - flush.first_block)];
    return (made ? made : row.codes[static_cast<size_t>(index)])->data();
  }

  void store_codes(int64_t token, int32_t head, const uint8_t* codes) const {
    std::byte* to = block(token) + side.codes_at + head * side.head_stride +
                    token % layout.block_size * side.code_bytes;
    pack_codes(codes, layout.head_dim, side.quantizer.bits, to);
  }

  // Parameters of tokens [first, first + n), which were a flat tensor of their own.
  void store_aligned(int64_t first, int64_t n, const float* scale, const float* zero) const {
    const FlatGroups groups(side.quantizer, layout.elements(n), layout.head_dim);
    for (int32_t head = 0; head < layout.heads; ++head) {
      for (int64_t i = 0; i < n; i += side.token_group) {
        const int64_t slot = (first + i) % layout.block_size;
        std::byte* to = block(first + i) + head * side.param_head_stride +
                        slot / side.token_group * side.param_token_stride;
        for (int32_t d = 0; d < layout.head_dim; d += side.channel_group) {
          const int64_t g = groups.of((head * n + i) * layout.head_dim + d);
          const int64_t at = d / side.channel_group * number_bytes;
          store_stored(to + side.scale_at + at, layout.dtype, scale[g]);
          store_stored(to + side.zero_at + at, layout.dtype, zero[g]);
        }
      }
    }
  }

  void store_flat(int64_t n, const float* scale, const float* zero) const {
    std::byte* scales = flush.flat->data() + layout.flat_scale_at(which, n);
    std::byte* zeros = flush.flat->data() + layout.flat_zero_at(which, n);
    for (int64_t g = 0; g < side.groups(layout.elements(n)); ++g) {
      store_stored(scales + g * number_bytes, layout.dtype, scale[g]);
      store_stored(zeros + g * number_bytes, layout.dtype, zero[g]);
    }
  }

  // Tokens [first, first + n) as a flat tensor [heads, n, head_dim].
  void quantize_tokens(int64_t first, int64_t n, LoadToken load, std::byte* scratch) const {
    const int64_t count = layout.elements(n), groups = side.groups(count), dim = layout.head_dim;
    auto* x = reinterpret_cast<float*>(scratch);
    float *scale = x + count, *zero = scale + groups;
    auto* codes = reinterpret_cast<uint8_t*>(zero + groups);
    for (int32_t head = 0; head < layout.heads; ++head)
      for (int64_t i = 0; i < n; ++i) load(first + i, head, x + (head * n + i) * dim);
    quantize(side.quantizer, x, count, dim, codes, scale, zero);
    for (int32_t head = 0; head < layout.heads; ++head)
      for (int64_t i = 0; i < n; ++i) store_codes(first + i, head, codes + (head * n + i) * dim);
    if (side.aligned) {
      store_aligned(first, n, scale, zero);
    } else {
      store_flat(n, scale, zero);
    }
  }
};

}  // namespace

void QuantFlush::write_side(const QuantLayout& layout, const QuantRow& row, int which, int64_t from,
                            LoadToken load, std::byte* scratch) const noexcept {
  const SideWriter writer{layout, *this, row, which};
  const int64_t chunk = layout.chunk(writer.side, quantized - from);
  for (int64_t first = from; first < quantized; first += chunk)
    writer.quantize_tokens(first, chunk, load, scratch);
}

void QuantFlush::give_to(QuantRow& row) noexcept {
  for (size_t i = 0; i < fresh.size(); ++i) {
    const size_t at = static_cast<size_t>(first_block) + i;
    if (at == row.codes.size()) {
      row.codes.push_back(std::move(fresh[i]));  // room was reserved
    } else if (fresh[i]) {
      row.codes[at] = std::move(fresh[i]);
    }
  }
  row.flat = std::move(flat);
  row.flat_tokens = row.quantized = quantized;
  *this = {};
}

void QuantFlush::run(const QuantLayout& layout, QuantRow& row, std::byte* scratch) noexcept {
  for (int which = 0; which < 2; ++which) {
    const auto load = [&](int64_t token, int32_t head, float* out) {
      row.load(layout, which, token, head, out);
    };
    write_side(layout, row, which, layout.flush_from(layout.side(which), row.quantized), load,
               scratch);
  }
  const int64_t gone = quantized - row.quantized;
  give_to(row);
  row.exact_begin += gone, row.exact_len -= gone;
  const int64_t blocks = row.exact_begin / QuantLayout::kExactBlock;
  row.exact.erase(row.exact.begin(), row.exact.begin() + blocks);
  row.exact_begin %= QuantLayout::kExactBlock;
  row.trim(layout);
}

}  // namespace larder
