// The bytes of a block of quantized tokens: codes and their parameters, for K and V of all heads.
#pragma once

#include <span>

#include "larder/cache/group_codes.h"
#include "larder/cache/layer.h"

namespace larder {

constexpr int32_t kCodedBlock = 64;  // tokens a block; blocks begin at multiples of it
constexpr int64_t kMostHeadDim = 1024;

// How one of K and V is quantized.
struct CodeRecipe {
  static constexpr int32_t kExact = 16;
  int32_t bits = 4;          // 2, 3, 4 or 8, or kExact: stored as the cache's dtype
  bool per_channel = false;  // a group is `group` tokens of a channel, else channels of a token
  int32_t group = 64;
  bool symmetric = false, search = false;
  DType scale_dtype = DType::kF16;
};

// Where numbers lie that are to be quantized: token i's head at data + i * token_stride.
struct DenseSource {
  const std::byte* data;
  int64_t token_stride;  // bytes
  DType dtype;
};

// One of K and V within a coded block:
//   codes  [num_kv_heads, 64, packed head_dim]
//   scale  [num_kv_heads, 64 / token_group, groups a token]
//   shift  the same, unless symmetric
// each part at a multiple of 16 bytes.
class CodedSide {
 public:
  // Begins at byte `begin` of the block. Throws where the group does not fit (multiples of 64
  // tokens).
  CodedSide(const LayerSpec& spec, DType dtype, const CodeRecipe& recipe, int64_t begin);

  int64_t end() const { return end_; }  // past its last byte
  const KVSide& side() const { return side_; }
  bool is_coded() const { return side_.quant.bits > 0; }
  // Bytes of all but the padding, for 64 tokens.
  int64_t payload() const { return payload_; }

  // Writes one head of all 64 tokens.
  void encode(const DenseSource& from, int32_t head, std::byte* block) const;
  // One head of the token at `slot`.
  void decode(const std::byte* block, int32_t head, int64_t slot, float* out) const;
  // Moves a token as it is. Needs: a group lies within a token.
  void copy_token(const std::byte* from, int64_t from_slot, std::byte* to, int64_t to_slot) const;

 private:
  void encode_token(const DenseSource& from, int32_t head, int64_t slot, std::byte* block) const;
  void encode_range(const DenseSource& from, int32_t head, int64_t range, std::byte* block) const;
  void store_scale(const GroupScale& group, int32_t head, int64_t slot, int64_t channel,
                   std::byte* block) const;
  int64_t scale_offset(int32_t head, int64_t slot, int64_t channel) const;

  int32_t heads_, head_dim_;
  GroupFormat format_;
  KVSide side_;
  int64_t end_ = 0, payload_ = 0;
};

// K, then V.
struct CodedBlock {
  CodedBlock(const LayerSpec& spec, DType dtype, const CodeRecipe& key, const CodeRecipe& value)
      : k(spec, dtype, key, 0), v(spec, dtype, value, k.end()) {}
  int64_t bytes() const { return v.end(); }
  CodedSide k, v;
};

}  // namespace larder
