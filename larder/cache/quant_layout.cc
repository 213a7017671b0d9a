#include "larder/cache/quant_layout.h"

#include <algorithm>
#include <numeric>

#include "larder/base/error.h"

namespace larder {
namespace {

constexpr int32_t kBlock = 64;

int64_t dtype_bytes(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

// The cut of append_only: every flush is a flat tensor of its own, and its tokens are so many that
// no group leaves its head.
void cut_within_heads(QuantSideLayout& side, int32_t head_dim, const char* what) {
  const int32_t group = side.quantizer.group_size;
  const KVOrder order = side.quantizer.order();
  if (order == KVOrder::kFlatColumns) {
    fail("append_only: ", what, " with hqq axis 0, whose groups stride through the whole row; use ",
         "axis 1");
  }
  if (order == KVOrder::kFlatChannels) {
    side.token_group = group, side.channel_group = 1;
  } else if (group % head_dim == 0) {
    side.token_group = group / head_dim, side.channel_group = head_dim;
  } else {
    fail("append_only: ", what, " of head_dim ", head_dim, " with q_group_size ", group,
         ": one must divide the other");
  }
}

}  // namespace

QuantSideLayout::QuantSideLayout(const Quantizer& q, const LayerSpec& spec, bool append_only,
                                 const char* what)
    : quantizer(q), code_bytes(packed_bytes(spec.head_dim, q.bits)) {
  check_quantizer(q, what);
  const bool within_token = q.order() == KVOrder::kFlatRows && spec.head_dim % q.group_size == 0;
  aligned = within_token || append_only;
  if (within_token) {
    channel_group = q.group_size;
  } else if (append_only) {
    cut_within_heads(*this, spec.head_dim, what);
  }
  // Quantizing again what quanto gave changes no code where the group's own tokens are all there.
  appends = append_only || (within_token && q.method == QuantMethod::kQuanto);
  const int64_t token = q.order() == KVOrder::kFlatChannels
                            ? spec.num_kv_heads
                            : int64_t{spec.num_kv_heads} * spec.head_dim;
  unit = aligned ? token_group : q.group_size / std::gcd(int64_t{q.group_size}, token);
}

QuantLayout::QuantLayout(const QuantSettings& settings, const LayerSpec& spec, DType cache_dtype)
    : heads(spec.num_kv_heads),
      head_dim(spec.head_dim),
      dtype(cache_dtype),
      residual_length(settings.residual_length),
      k(settings.k, spec, settings.append_only, "keys"),
      v(settings.v, spec, settings.append_only, "values") {
  unit = std::lcm(k.unit, v.unit);
  const int64_t most = std::max<int64_t>(residual_length, kExactBlock);
  if (unit > most) {
    fail("q_group_size ", std::max(k.quantizer.group_size, v.quantizer.group_size), " with ", heads,
         " heads of head_dim ", head_dim, ": groups divide only every ", unit,
         " tokens, and the residual holds at most ", most, " (residual_length ", residual_length,
         ")");
  }
  // These are checked, and what codes and their parameters take is less a token.
  exact_token_bytes = checked_mul(head_dim, dtype_bytes(dtype));
  exact_head_bytes = checked_mul(exact_token_bytes, kExactBlock);
  exact_side_bytes = checked_mul(exact_head_bytes, heads);
  checked_mul(exact_side_bytes, 2);
  const auto tokens = static_cast<int64_t>(std::lcm(k.token_group, v.token_group));
  block_size = static_cast<int32_t>((kBlock + tokens - 1) / tokens * tokens);
  const auto take = [&](int64_t bytes) {
    const int64_t at = block_bytes;
    block_bytes += bytes;
    return at;
  };
  for (QuantSideLayout* side : {&k, &v}) {
    side->quantizer.dtype = dtype;
    side->head_stride = checked_mul(block_size, side->code_bytes);
    side->codes_at = take(checked_mul(heads, side->head_stride));
  }
  block_bytes = (block_bytes + 3) / 4 * 4;
  for (QuantSideLayout* side : {&k, &v}) {
    if (!side->aligned) continue;
    side->param_token_stride = head_dim / side->channel_group * dtype_bytes(dtype);
    side->param_head_stride = block_size / side->token_group * side->param_token_stride;
    side->scale_at = take(heads * side->param_head_stride);
    side->zero_at = take(heads * side->param_head_stride);
  }
}

int64_t QuantLayout::flat_scale_at(int which, int64_t tokens) const {
  const int64_t before = which == 1 && !k.aligned ? 2 * k.groups(elements(tokens)) : 0;
  return before * dtype_bytes(dtype);
}

int64_t QuantLayout::flat_zero_at(int which, int64_t tokens) const {
  return flat_scale_at(which, tokens) + side(which).groups(elements(tokens)) * dtype_bytes(dtype);
}

int64_t QuantLayout::flat_bytes(int64_t tokens) const {
  int64_t groups = 0;
  if (!k.aligned) groups += 2 * k.groups(elements(tokens));
  if (!v.aligned) groups += 2 * v.groups(elements(tokens));
  return groups * dtype_bytes(dtype);
}

// hqq ties the groups of a tensor together, and flat groups cross tokens; quanto's aligned groups
// can be taken a few tokens at a time.
int64_t QuantLayout::chunk(const QuantSideLayout& side, int64_t tokens) const {
  const bool apart = side.aligned && side.quantizer.method == QuantMethod::kQuanto;
  return apart ? side.token_group : tokens;
}

int64_t QuantLayout::scratch_bytes(int64_t quantized, int64_t tokens) const {
  int64_t most = 0;
  for (int which = 0; which < 2; ++which) {
    const QuantSideLayout& s = side(which);
    const int64_t n = elements(chunk(s, tokens - flush_from(s, quantized)));
    const auto floats = static_cast<int64_t>(sizeof(float));
    most = std::max(most, checked_mul(n + 2 * s.groups(n), floats) + n);
  }
  return most;
}

}  // namespace larder
