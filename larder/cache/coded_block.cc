#include "larder/cache/coded_block.h"

#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/stored_float.h"

namespace larder {
namespace {

constexpr int64_t kPartAlignment = 16;

int64_t aligned(int64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace

CodedSide::CodedSide(const LayerSpec& spec, DType dtype, const CodeRecipe& recipe, int64_t begin)
    : heads_(spec.num_kv_heads), head_dim_(spec.head_dim) {
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  side_.data = static_cast<uintptr_t>(begin);
  side_.dtype = dtype;
  if (recipe.bits == CodeRecipe::kExact) {
    side_.token_stride = checked_mul(spec.head_dim, element);
    side_.head_stride = checked_mul(side_.token_stride, kCodedBlock);
    payload_ = checked_mul(side_.head_stride, heads_);
    end_ = begin + aligned(payload_);
    return;
  }
  if (spec.head_dim > kMostHeadDim)
    fail("head_dim ", spec.head_dim, " is past the ", kMostHeadDim, " of a quantized layer");
  format_ = {recipe.bits, recipe.symmetric ? KVForm::kSymmetric : KVForm::kScaleShift,
             recipe.scale_dtype, recipe.search};
  KVQuant& quant = side_.quant;
  quant.bits = recipe.bits;
  quant.form = format_.form;
  quant.dtype = recipe.scale_dtype;
  quant.token_group = recipe.per_channel ? recipe.group : 1;
  quant.channel_group = recipe.per_channel ? 1 : std::min(recipe.group, spec.head_dim);
  if (kCodedBlock % quant.token_group != 0)
    fail("q_group_size ", recipe.group, " does not divide a block of ", kCodedBlock, " tokens");
  const int64_t groups = (head_dim_ + quant.channel_group - 1) / quant.channel_group;
  const auto scale_size = static_cast<int64_t>(dtype_size(recipe.scale_dtype));
  side_.token_stride = packed_bytes(head_dim_, recipe.bits);
  side_.head_stride = side_.token_stride * kCodedBlock;
  quant.token_stride = groups * scale_size;
  quant.head_stride = quant.token_stride * (kCodedBlock / quant.token_group);
  const int64_t codes = checked_mul(side_.head_stride, heads_);
  const int64_t scales = checked_mul(quant.head_stride, heads_);
  payload_ = codes + scales * (recipe.symmetric ? 1 : 2);
  quant.scale = static_cast<uintptr_t>(begin + aligned(codes));
  end_ = begin + aligned(codes) + aligned(scales);
  if (recipe.symmetric) return;
  quant.zero = static_cast<uintptr_t>(end_);
  end_ += aligned(scales);
}

void CodedSide::encode(const DenseSource& from, int32_t head, std::byte* block) const {
  if (!is_coded()) {
    std::byte* to = block + side_.data + head * side_.head_stride;
    for (int64_t slot = 0; slot < kCodedBlock; ++slot) {
      const std::byte* token = from.data + slot * from.token_stride;
      if (from.dtype == side_.dtype) {
        std::memcpy(to + slot * side_.token_stride, token, static_cast<size_t>(side_.token_stride));
        continue;
      }
      const auto size = static_cast<int64_t>(dtype_size(side_.dtype));
      const auto from_size = static_cast<int64_t>(dtype_size(from.dtype));
      for (int64_t d = 0; d < head_dim_; ++d)
        store_stored(to + slot * side_.token_stride + d * size, side_.dtype,
                     load_stored(token + d * from_size, from.dtype));
    }
  } else if (side_.quant.token_group == 1) {
    for (int64_t slot = 0; slot < kCodedBlock; ++slot) encode_token(from, head, slot, block);
  } else {
    for (int64_t range = 0; range < kCodedBlock / side_.quant.token_group; ++range)
      encode_range(from, head, range, block);
  }
}

void CodedSide::encode_token(const DenseSource& from, int32_t head, int64_t slot,
                             std::byte* block) const {
  uint8_t codes[kMostHeadDim];
  float x[kMaxGroup];
  const std::byte* token = from.data + slot * from.token_stride;
  const auto size = static_cast<int64_t>(dtype_size(from.dtype));
  const int64_t group = side_.quant.channel_group;
  for (int64_t d = 0; d < head_dim_; d += group) {
    const int64_t count = std::min<int64_t>(group, head_dim_ - d);
    for (int64_t i = 0; i < count; ++i)
      x[static_cast<size_t>(i)] = load_stored(token + (d + i) * size, from.dtype);
    store_scale(encode_group({x, static_cast<size_t>(count)}, format_, codes + d), head, slot, d,
                block);
  }
  pack_codes(codes, head_dim_, format_.bits,
             block + side_.data + head * side_.head_stride + slot * side_.token_stride);
}

// A range of tokens, channel by channel; then its tokens are packed.
void CodedSide::encode_range(const DenseSource& from, int32_t head, int64_t range,
                             std::byte* block) const {
  uint8_t codes[kCodedBlock * kMostHeadDim];  // [token, channel]
  uint8_t column[kCodedBlock];
  float x[kCodedBlock];
  const auto size = static_cast<int64_t>(dtype_size(from.dtype));
  const int64_t tokens = side_.quant.token_group, first = range * tokens;
  for (int64_t d = 0; d < head_dim_; ++d) {
    for (int64_t i = 0; i < tokens; ++i)
      x[static_cast<size_t>(i)] =
          load_stored(from.data + (first + i) * from.token_stride + d * size, from.dtype);
    store_scale(encode_group({x, static_cast<size_t>(tokens)}, format_, column), head, first, d,
                block);
    for (int64_t i = 0; i < tokens; ++i)
      codes[static_cast<size_t>(i * head_dim_ + d)] = column[static_cast<size_t>(i)];
  }
  for (int64_t i = 0; i < tokens; ++i)
    pack_codes(codes + i * head_dim_, head_dim_, format_.bits,
               block + side_.data + head * side_.head_stride + (first + i) * side_.token_stride);
}

int64_t CodedSide::scale_offset(int32_t head, int64_t slot, int64_t channel) const {
  const KVQuant& quant = side_.quant;
  return head * quant.head_stride + slot / quant.token_group * quant.token_stride +
         channel / quant.channel_group * static_cast<int64_t>(dtype_size(quant.dtype));
}

void CodedSide::store_scale(const GroupScale& group, int32_t head, int64_t slot, int64_t channel,
                            std::byte* block) const {
  const KVQuant& quant = side_.quant;
  const int64_t offset = scale_offset(head, slot, channel);
  store_stored(block + quant.scale + offset, quant.dtype, group.scale);
  if (quant.form != KVForm::kSymmetric)
    store_stored(block + quant.zero + offset, quant.dtype, group.shift);
}

void CodedSide::decode(const std::byte* block, int32_t head, int64_t slot, float* out) const {
  const std::byte* token =
      block + side_.data + head * side_.head_stride + slot * side_.token_stride;
  const KVQuant& quant = side_.quant;
  if (!is_coded()) {
    const auto size = static_cast<int64_t>(dtype_size(side_.dtype));
    for (int64_t d = 0; d < head_dim_; ++d) out[d] = load_stored(token + d * size, side_.dtype);
    return;
  }
  uint8_t codes[kMostHeadDim];
  unpack_codes(token, head_dim_, quant.bits, codes);
  for (int64_t d = 0; d < head_dim_; ++d) {
    const int64_t offset = scale_offset(head, slot, d);
    GroupScale group;
    group.scale = load_stored(block + quant.scale + offset, quant.dtype);
    if (quant.form != KVForm::kSymmetric)
      group.shift = load_stored(block + quant.zero + offset, quant.dtype);
    out[d] = decode_value(codes[static_cast<size_t>(d)], group, format_);
  }
}

void CodedSide::copy_token(const std::byte* from, int64_t from_slot, std::byte* to,
                           int64_t to_slot) const {
  const KVQuant& quant = side_.quant;
  LARDER_ASSERT(quant.token_group == 1);
  for (int32_t head = 0; head < heads_; ++head) {
    const auto move = [&](uintptr_t part, int64_t head_stride, int64_t token_stride) {
      const auto at = static_cast<int64_t>(part) + head * head_stride;
      std::memcpy(to + at + to_slot * token_stride, from + at + from_slot * token_stride,
                  static_cast<size_t>(token_stride));
    };
    move(side_.data, side_.head_stride, side_.token_stride);
    if (!is_coded()) continue;
    move(quant.scale, quant.head_stride, quant.token_stride);
    if (quant.form != KVForm::kSymmetric) move(quant.zero, quant.head_stride, quant.token_stride);
  }
}

}  // namespace larder
