// Whole rows of a quantized layer: out, in from another, and moved along their positions.
#include <algorithm>
#include <array>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/image.h"
#include "larder/cache/key_shift.h"
#include "larder/cache/quantized_layer.h"
#include "larder/cache/quantizer_methods.h"
#include "larder/cache/rows.h"

namespace larder {
namespace {

struct Names {
  std::string_view codes, scale, zero, exact;
};
constexpr Names kNames[2] = {{"k_codes", "k_scale", "k_zero", "k"},
                             {"v_codes", "v_scale", "v_zero", "v"}};

// The shapes of a row's image. Parameters are [num_kv_heads, token groups, channel groups], or one
// run of flat groups.
struct ImageShape {
  const QuantLayout& layout;
  int64_t quantized, flat_tokens, exact;

  Shape codes(int which) const { return {layout.heads, quantized, layout.side(which).code_bytes}; }
  Shape parameters(int which) const {
    const QuantSideLayout& side = layout.side(which);
    if (!side.aligned) return {side.groups(layout.elements(flat_tokens))};
    return {layout.heads, ceil_div(quantized, side.token_group),
            layout.head_dim / side.channel_group};
  }
  Shape exact_tokens() const { return {layout.heads, exact, layout.head_dim}; }
};

// Every run of bytes of one side in the order of its image: body(tensor, bytes in the row, count).
enum class Piece { kCodes, kScale, kZero, kExact };
template <class Body>
void for_each_run(const QuantLayout& layout, const QuantRow& row, int which, const Body& body) {
  const QuantSideLayout& side = layout.side(which);
  for (int32_t head = 0; head < layout.heads; ++head) {
    for (int64_t t = 0; t < row.quantized; ++t)
      body(Piece::kCodes, row.codes_at(layout, which, t, head), side.code_bytes);
    for (int64_t t = 0; side.aligned && t < row.quantized; t += side.token_group) {
      body(Piece::kScale, row.scales_at(layout, which, t, head), side.param_token_stride);
      body(Piece::kZero, row.zeros_at(layout, which, t, head), side.param_token_stride);
    }
    for (int64_t i = 0; i < row.exact_len; ++i)
      body(Piece::kExact, row.exact_at(layout, which, i, head), layout.exact_token_bytes);
  }
  if (side.aligned || !row.flat) return;
  const int64_t bytes =
      layout.flat_zero_at(which, row.flat_tokens) - layout.flat_scale_at(which, row.flat_tokens);
  body(Piece::kScale, row.flat->data() + layout.flat_scale_at(which, row.flat_tokens), bytes);
  body(Piece::kZero, row.flat->data() + layout.flat_zero_at(which, row.flat_tokens), bytes);
}

// Walks the tensors of an image beside the row's bytes.
class Cursor {
 public:
  Cursor(const TensorView& codes, const TensorView& scale, const TensorView& zero,
         const TensorView& exact)
      : at_{codes.bytes(), scale.bytes(), zero.bytes(), exact.bytes()} {}
  std::byte* next(Piece piece, int64_t bytes) {
    std::byte*& at = at_[static_cast<size_t>(piece)];
    std::byte* const from = at;
    at += bytes;
    return from;
  }

 private:
  std::array<std::byte*, 4> at_;
};

}  // namespace

// A row with blocks for so many tokens, nothing in them.
QuantRow QuantizedLayer::make_row(int64_t quantized, int64_t flat_tokens, int64_t exact) const {
  QuantRow row;
  row.quantized = quantized, row.exact_len = exact;
  const auto take = [&](std::vector<BlockPtr>& blocks, int64_t count, int64_t bytes) {
    for (int64_t i = 0; i < count; ++i) blocks.push_back(source_->make(static_cast<size_t>(bytes)));
  };
  take(row.codes, layout_.blocks_for(quantized), layout_.block_bytes);
  take(row.exact, ceil_div(exact, QuantLayout::kExactBlock), 2 * layout_.exact_side_bytes);
  if (layout_.has_flat() && quantized > 0) {
    row.flat = source_->make(static_cast<size_t>(layout_.flat_bytes(flat_tokens)));
    row.flat_tokens = flat_tokens;
  }
  return row;
}

RowImage QuantizedLayer::save(int32_t index, Allocator& allocator) const {
  const QuantRow row = index < batch() ? row_at(index) : QuantRow();
  const ImageShape shape{layout_, row.quantized, row.flat_tokens, row.exact_len};
  RowImage image{row.len(), {}};
  for (int which = 0; which < 2; ++which) {
    const Names& names = kNames[which];
    Tensor codes(allocator, shape.codes(which), DType::kU8, "save");
    Tensor scale(allocator, shape.parameters(which), dtype(), "save");
    Tensor zero(allocator, shape.parameters(which), dtype(), "save");
    Tensor exact(allocator, shape.exact_tokens(), dtype(), "save");
    Cursor cursor(codes, scale, zero, exact);
    for_each_run(layout_, row, which, [&](Piece piece, const std::byte* from, int64_t bytes) {
      std::memcpy(cursor.next(piece, bytes), from, static_cast<size_t>(bytes));
    });
    image.tensors.push_back({std::string(names.codes), std::move(codes)});
    image.tensors.push_back({std::string(names.scale), std::move(scale)});
    image.tensors.push_back({std::string(names.zero), std::move(zero)});
    image.tensors.push_back({std::string(names.exact), std::move(exact)});
  }
  return image;
}

namespace {

// What an image holds of which; all its tensors are checked against this.
ImageShape shape_of(const QuantLayout& layout, const RowImageView& row) {
  const TensorView& codes = image_tensor(row, kNames[0].codes);
  ImageShape shape{layout, codes.shape.rank() == 3 ? codes.shape[1] : 0, 0, 0};
  shape.exact = row.seq_len - shape.quantized;
  if (shape.exact < 0)
    fail("the saved row has ", row.seq_len, " tokens, but codes of ", shape.quantized);
  const int flat = layout.k.aligned ? 1 : 0;
  if (layout.has_flat() && shape.quantized > 0) {
    const TensorView& scale = image_tensor(row, kNames[flat].scale);
    const int64_t elements = checked_mul(scale.shape.rank() == 1 ? scale.shape[0] : 0,
                                         layout.side(flat).quantizer.group_size);
    shape.flat_tokens = elements / layout.elements(1);
    if (shape.flat_tokens < shape.quantized || shape.flat_tokens > INT32_MAX ||
        shape.flat_tokens % layout.unit != 0) {
      fail("the saved row has ", shape.quantized, " tokens of codes, but parameters of ",
           shape.flat_tokens);
    }
  }
  return shape;
}

void check_row(const QuantLayout& layout, const RowImageView& row) {
  check_image(row,
              {kNames[0].codes, kNames[0].scale, kNames[0].zero, kNames[0].exact, kNames[1].codes,
               kNames[1].scale, kNames[1].zero, kNames[1].exact},
              -1);
  const ImageShape shape = shape_of(layout, row);
  for (int which = 0; which < 2; ++which) {
    image_tensor(row, kNames[which].codes, DType::kU8, shape.codes(which));
    image_tensor(row, kNames[which].scale, layout.dtype, shape.parameters(which));
    image_tensor(row, kNames[which].zero, layout.dtype, shape.parameters(which));
    image_tensor(row, kNames[which].exact, layout.dtype, shape.exact_tokens());
  }
}

}  // namespace

std::unique_ptr<Change> QuantizedLayer::load(std::span<const RowImageView> rows) {
  for (const RowImageView& row : rows) check_row(layout_, row);
  std::vector<QuantRow> loaded;
  for (const RowImageView& image : rows) {
    const ImageShape shape = shape_of(layout_, image);
    loaded.push_back(make_row(shape.quantized, shape.flat_tokens, shape.exact));
    for (int which = 0; which < 2; ++which) {
      const Names& names = kNames[which];
      Cursor cursor(image_tensor(image, names.codes), image_tensor(image, names.scale),
                    image_tensor(image, names.zero), image_tensor(image, names.exact));
      for_each_run(layout_, loaded.back(), which, [&](Piece piece, std::byte* to, int64_t bytes) {
        std::memcpy(to, cursor.next(piece, bytes), static_cast<size_t>(bytes));
      });
    }
  }
  return replace_rows(rows_, std::move(loaded));
}

// As a first step would leave the row: whole groups are codes.
QuantRow QuantizedLayer::quantized_row(const RowTokens& tokens) const {
  const int64_t len = tokens.k.shape[1], quantized = len / layout_.unit * layout_.unit;
  QuantRow row = make_row(0, 0, len - quantized);
  const auto load = [&](int which, int64_t token, int32_t head, const TensorView& to) {
    const TensorView& from = which == 0 ? tokens.k : tokens.v;
    copy_into(to, from.slice(0, head, head + 1).slice(1, token, token + 1));
  };
  const Shape one{1, 1, spec_.head_dim};
  const Tensor rounded(scratch_->allocator(), one, dtype(), "scratch");
  if (quantized > 0) {
    QuantFlush flush = QuantFlush::prepare(layout_, row, quantized, *source_);
    const Buffer scratch(scratch_->allocator(),
                         static_cast<size_t>(layout_.scratch_bytes(0, quantized)), "scratch");
    for (int which = 0; which < 2; ++which) {
      const auto load_token = [&](int64_t token, int32_t head, float* out) {
        load(which, token, head, rounded);
        copy_into(TensorView::contiguous(out, DType::kF32, one), rounded);
      };
      flush.write_side(layout_, row, which, 0, load_token, scratch.data());
    }
    flush.give_to(row);
  }
  for (int which = 0; which < 2; ++which) {
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head)
      for (int64_t i = 0; i < row.exact_len; ++i)
        load(which, quantized + i, head,
             TensorView::contiguous(row.exact_at(layout_, which, i, head), dtype(), one));
  }
  return row;
}

void QuantizedLayer::check_assign(int64_t first_position, int64_t /*seq_len*/) const {
  if (first_position > 0) {
    fail_as(ErrorKind::kUnsupported, "the row begins at position ", first_position,
            ", but a quantized layer keeps every token from position 0");
  }
}

std::unique_ptr<Change> QuantizedLayer::assign(std::span<const RowTokens> rows) {
  for (const RowTokens& row : rows) {
    LARDER_ASSERT(row.k.shape == Shape({spec_.num_kv_heads, row.k.shape[1], spec_.head_dim}) &&
                  row.v.shape == row.k.shape);
    check_assign(row.first_position, row.first_position + row.k.shape[1]);
  }
  std::vector<QuantRow> assigned;
  for (const RowTokens& row : rows) assigned.push_back(quantized_row(row));
  return replace_rows(rows_, std::move(assigned));
}

}  // namespace larder
