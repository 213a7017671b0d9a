// The view of a quantized layer: segment 0 codes, segment 1 exact tokens.
#include <algorithm>

#include "larder/cache/quantized_layer.h"

namespace larder {
namespace {

int64_t address(const BlockPtr& block) { return reinterpret_cast<intptr_t>(block->data()); }

KVSide code_side(const QuantLayout& layout, const QuantSideLayout& side) {
  KVSide out{
      static_cast<uintptr_t>(side.codes_at), layout.dtype, side.head_stride, side.code_bytes, {}};
  out.quant.bits = side.quantizer.bits;
  out.quant.form = side.quantizer.form();
  out.quant.order = side.aligned ? KVOrder::kAligned : side.quantizer.order();
  out.quant.dtype = layout.dtype;
  out.quant.token_group = side.token_group;
  out.quant.channel_group = side.channel_group;
  out.quant.scale = static_cast<uintptr_t>(side.scale_at);
  out.quant.zero = static_cast<uintptr_t>(side.zero_at);
  out.quant.head_stride = side.param_head_stride;
  out.quant.token_stride = side.param_token_stride;
  out.quant.group_size = side.quantizer.group_size;
  return out;
}

}  // namespace

void QuantizedLayer::ViewArrays::resize(size_t batch, size_t code_blocks, size_t exact_blocks) {
  code_table.assign(batch * code_blocks, 0);
  exact_table.assign(batch * exact_blocks, 0);
  for (int i = 0; i < 2; ++i) {
    first[i].assign(batch, 0);
    scale[i].assign(batch, 0);
    zero[i].assign(batch, 0);
    begin[i].assign(batch, 0);
    len[i].assign(batch, 0);
  }
  flat_tokens.assign(batch, 0);
}

// What the arrays say of one row of the step, `n` new tokens included.
void QuantizedLayer::show_row(const QuantRow& row, size_t b, int32_t n) {
  const size_t batch = arrays_.flat_tokens.size();
  const size_t code_stride = arrays_.code_table.size() / batch,
               exact_stride = arrays_.exact_table.size() / batch;
  for (size_t i = 0; i < row.codes.size(); ++i)
    arrays_.code_table[b * code_stride + i] = address(row.codes[i]);
  for (size_t i = 0; i < row.exact.size(); ++i)
    arrays_.exact_table[b * exact_stride + i] = address(row.exact[i]);
  arrays_.first[1][b] = row.quantized;
  arrays_.begin[1][b] = static_cast<int32_t>(row.exact_begin);
  arrays_.len[0][b] = static_cast<int32_t>(row.quantized);
  arrays_.len[1][b] = static_cast<int32_t>(row.exact_len + n);
  arrays_.flat_tokens[b] = static_cast<int32_t>(row.flat_tokens);
  for (int which = 0; which < 2 && row.flat; ++which) {
    if (layout_.side(which).aligned) continue;
    arrays_.scale[which][b] = address(row.flat) + layout_.flat_scale_at(which, row.flat_tokens);
    arrays_.zero[which][b] = address(row.flat) + layout_.flat_zero_at(which, row.flat_tokens);
  }
}

KVView QuantizedLayer::view_of(const Step& step) {
  for (int32_t b = 0; b < step.batch; ++b)
    show_row(row_at(step.slot[b]), static_cast<size_t>(b), step.q_len(b));
  KVView view{2, spec_.num_kv_heads, spec_.head_dim, {}};
  KVSegment& codes = view.segment[0];
  codes.k = code_side(layout_, layout_.k);
  codes.v = code_side(layout_, layout_.v);
  for (int which = 0; which < 2; ++which) {
    KVQuant& quant = which == 0 ? codes.k.quant : codes.v.quant;
    quant.scale_table = arrays_.scale[which].data();
    quant.zero_table = arrays_.zero[which].data();
    quant.flat_tokens = arrays_.flat_tokens.data();
  }
  codes.block_table = arrays_.code_table.data();
  codes.block_size = layout_.block_size;

  KVSegment& exact = view.segment[1];
  exact.k = {0, layout_.dtype, layout_.exact_head_bytes, layout_.exact_token_bytes, {}};
  exact.v = exact.k;
  exact.v.data = static_cast<uintptr_t>(layout_.exact_side_bytes);
  exact.block_table = arrays_.exact_table.data();
  exact.block_size = QuantLayout::kExactBlock;

  const size_t entries[2] = {arrays_.code_table.size(), arrays_.exact_table.size()};
  for (int i = 0; i < 2; ++i) {
    KVSegment& segment = view.segment[i];
    segment.table_stride =
        static_cast<int32_t>(entries[i] / static_cast<size_t>(std::max(step.batch, 1)));
    segment.first_position = arrays_.first[i].data();
    segment.begin = arrays_.begin[i].data();
    segment.len = arrays_.len[i].data();
    for (const int32_t len : arrays_.len[i]) segment.max_len = std::max(segment.max_len, len);
  }
  return view;
}

}  // namespace larder
