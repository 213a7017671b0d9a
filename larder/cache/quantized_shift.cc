// Context shift of a quantized layer whose groups lie within a token: codes of V and of the tokens
// that stay are moved as they are; keys that turn are quantized anew.
#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/key_shift.h"
#include "larder/cache/quantized_layer.h"
#include "larder/cache/quantizer_methods.h"

namespace larder {
namespace {

struct Shifted {
  const QuantLayout& layout;
  const ContextShift& shift;
  const QuantRow& from;
  QuantRow& to;

  int64_t source(int64_t token) const { return token < shift.keep ? token : token + shift.discard; }

  void move_codes(int which, int64_t token) const {
    const QuantSideLayout& side = layout.side(which);
    for (int32_t head = 0; head < layout.heads; ++head) {
      std::memcpy(to.codes_at(layout, which, token, head),
                  from.codes_at(layout, which, source(token), head),
                  static_cast<size_t>(side.code_bytes));
      std::memcpy(to.scales_at(layout, which, token, head),
                  from.scales_at(layout, which, source(token), head),
                  static_cast<size_t>(side.param_token_stride));
      std::memcpy(to.zeros_at(layout, which, token, head),
                  from.zeros_at(layout, which, source(token), head),
                  static_cast<size_t>(side.param_token_stride));
    }
  }

  void move_exact(int64_t index) const {
    const int64_t token = to.quantized + index;
    for (int32_t head = 0; head < layout.heads; ++head) {
      for (int which = 0; which < 2; ++which) {
        std::byte* at = to.exact_at(layout, which, index, head);
        std::memcpy(at, from.exact_at(layout, which, source(token) - from.quantized, head),
                    static_cast<size_t>(layout.exact_token_bytes));
        if (which == 0 && token >= shift.keep) turn_key(at, layout.dtype, shift.cos, shift.sin);
      }
    }
  }

  // Keys [keep, quantized) of the shifted row, as codes.
  void turn_codes(Allocator& allocator) const {
    const int64_t keep = std::min(shift.keep, to.quantized), n = to.quantized - keep;
    if (n == 0) return;
    QuantFlush flush;
    flush.quantized = to.quantized;
    flush.fresh.resize(to.codes.size());
    const int64_t chunk = layout.elements(layout.chunk(layout.k, n));
    const Buffer scratch(allocator,
                         static_cast<size_t>(chunk) * 5 +
                             static_cast<size_t>(layout.k.groups(chunk)) * 2 * sizeof(float),
                         "scratch");
    const auto load = [&](int64_t token, int32_t head, float* out) {
      from.load(layout, 0, source(token), head, out);
      turn_key(out, shift.cos, shift.sin);
      for (int32_t d = 0; d < layout.head_dim; ++d) out[d] = rounded_to(layout.dtype, out[d]);
    };
    flush.write_side(layout, to, 0, keep, load, scratch.data());
  }
};

// Tokens of [begin, end) that the shift leaves.
int64_t left(const ContextShift& shift, int64_t begin, int64_t end) {
  const int64_t gone = std::min(end, shift.keep + shift.discard) - std::max(begin, shift.keep);
  return end - begin - std::max<int64_t>(gone, 0);
}

}  // namespace

void QuantizedLayer::check_can_shift(int64_t /*len*/, const ContextShift& /*shift*/) const {
  if (layout_.within_tokens()) return;
  fail_as(ErrorKind::kUnsupported, "context shift: groups of ",
          std::max(layout_.k.quantizer.group_size, layout_.v.quantizer.group_size),
          " cross tokens of head_dim ", spec_.head_dim,
          "; use a q_group_size that divides it, with axis 0 (quanto) or 1 (hqq)");
}

std::unique_ptr<Change> QuantizedLayer::shift(int32_t index, const ContextShift& shift) {
  LARDER_ASSERT(index >= 0 && index < batch());
  const QuantRow& row = row_at(index);
  check_shift(shift, row.len(), spec_.head_dim);
  check_can_shift(row.len(), shift);
  const int64_t quantized = left(shift, 0, row.quantized);
  QuantRow shifted = make_row(quantized, 0, left(shift, row.quantized, row.len()));
  const Shifted move{layout_, shift, row, shifted};
  for (int64_t token = 0; token < quantized; ++token) {
    if (token < shift.keep) move.move_codes(0, token);
    move.move_codes(1, token);
  }
  for (int64_t i = 0; i < shifted.exact_len; ++i) move.move_exact(i);
  move.turn_codes(scratch_->allocator());
  return prepared([this, index, shifted = std::move(shifted)]() mutable noexcept {
    rows_[static_cast<size_t>(index)] = std::move(shifted);
  });
}

}  // namespace larder
