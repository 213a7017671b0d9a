// Context shift of LarderQuantizedLayer: which token moves where, and what it becomes.
#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/key_shift.h"
#include "larder/cache/larder_quantized_layer.h"
#include "larder/cache/rows.h"
#include "larder/cache/window.h"
#include "larder/tensor/hadamard.h"

namespace larder {
namespace {

constexpr int64_t kBlock = kCodedBlock;

// Where the token that will be at `position` is now.
int64_t source_of(const ContextShift& shift, int64_t position) {
  return position < shift.keep ? position : position + shift.discard;
}

}  // namespace

void LarderQuantizedLayer::check_can_shift(int64_t len, const ContextShift& /*shift*/) const {
  if (window_start(spec_.window, len) - options_.rollback < kBlock) return;
  fail_as(ErrorKind::kUnsupported, "no context shift of a row of ", len,
          " tokens: the sliding window of ", spec_.window, " has then dropped the first ones");
}

std::unique_ptr<Change> LarderQuantizedLayer::shift(int32_t row_index, const ContextShift& shift) {
  check_row(row_index, batch());
  const Row& row = rows_[static_cast<size_t>(row_index)];
  check_shift(shift, row.len, spec_.head_dim);
  if (row.first > 0) {
    fail_as(ErrorKind::kUnsupported, "a context shift of row ", row_index,
            ", whose sliding window has dropped the first ", row.first, " tokens");
  }
  const int64_t coded = kBlock * row.coded_end();
  Row moved;
  moved.len = row.len - shift.discard;
  const int64_t still_coded =
      std::min(coded, shift.keep) + std::max<int64_t>(0, coded - shift.keep - shift.discard);
  for (int64_t block = 0; kBlock * block < moved.len; ++block) {
    const bool whole = kBlock * (block + 1) <= std::min(shift.keep, moved.len);
    if (kBlock * (block + 1) <= still_coded) {
      moved.coded.push_back(whole ? row.coded[static_cast<size_t>(block)]
                                  : shifted_codes(row, shift, block));
    } else {
      moved.exact.push_back(whole && block >= row.coded_end()
                                ? row.exact[static_cast<size_t>(block - row.coded_end())]
                                : shifted_exact(row, shift, block, moved.len));
    }
  }
  return prepared([this, row_index, moved = std::move(moved)]() mutable noexcept {
    rows_[static_cast<size_t>(row_index)] = std::move(moved);
  });
}

// The key of the token that will be at `position`, at its new angle.
void LarderQuantizedLayer::shifted_key(const Row& row, const ContextShift& shift, int64_t position,
                                       int32_t head, float* out) const {
  token_floats(row, source_of(shift, position), head, Part::kKey, out);
  if (position >= shift.keep) turn_key(out, shift.cos, shift.sin);
}

BlockPtr LarderQuantizedLayer::shifted_codes(const Row& row, const ContextShift& shift,
                                             int64_t block) const {
  BlockPtr made = make_coded();
  std::memset(made->data(), 0, made->size());
  const int64_t dim = spec_.head_dim, token_bytes = dim * static_cast<int64_t>(sizeof(float));
  std::vector<float> keys(static_cast<size_t>(kBlock * dim));
  for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
    for (int64_t i = 0; i < kBlock; ++i) {
      float* key = keys.data() + i * dim;
      shifted_key(row, shift, kBlock * block + i, head, key);
      if (options_.hadamard) larder::hadamard(key, 1, dim);
    }
    coded_.k.encode({reinterpret_cast<const std::byte*>(keys.data()), token_bytes, DType::kF32},
                    head, made->data());
  }
  for (int64_t i = 0; i < kBlock; ++i) {
    const int64_t from = source_of(shift, kBlock * block + i);
    const std::byte* old = row.coded[static_cast<size_t>(from / kBlock)]->data();
    coded_.v.copy_token(old, from % kBlock, made->data(), i);
    // Keys that stay where they are keep their codes, where groups allow it.
    if (kBlock * block + i < shift.keep && coded_.k.side().quant.token_group == 1)
      coded_.k.copy_token(old, from % kBlock, made->data(), i);
  }
  return made;
}

BlockPtr LarderQuantizedLayer::shifted_exact(const Row& row, const ContextShift& shift,
                                             int64_t block, int64_t len) const {
  BlockPtr made = make_exact();
  float x[kMostHeadDim];
  for (int64_t p = kBlock * block; p < std::min(len, kBlock * (block + 1)); ++p) {
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
      shifted_key(row, shift, p, head, x);
      store(slot(*made, Part::kKey, head, p % kBlock), Part::kKey, x);
      token_floats(row, source_of(shift, p), head, Part::kValue, x);
      store(slot(*made, Part::kValue, head, p % kBlock), Part::kValue, x);
    }
  }
  return made;
}

}  // namespace larder
