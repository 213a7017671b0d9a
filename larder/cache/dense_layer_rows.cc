// Whole rows of a dense layer: out, in from another, and moved along their positions.
#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/dense_layer.h"
#include "larder/cache/image.h"
#include "larder/cache/key_shift.h"
#include "larder/cache/rows.h"
#include "larder/cache/window.h"

namespace larder {

template <class Body>
void DenseLayer::for_each_run(const Row& row, const Body& body) const {
  for (int64_t at = row.first; at < row.len;) {
    const int64_t n = std::min(storage_.block_size - at % storage_.block_size, row.len - at);
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) body(at, n, head);
    at += n;
  }
}

void DenseLayer::read(int32_t row_index, const TensorView& k, const TensorView& v) const {
  LARDER_ASSERT(k.dtype == dtype_ && v.dtype == dtype_ && k.is_contiguous() && v.is_contiguous());
  if (row_index >= batch()) return;
  const Row& row = rows_[static_cast<size_t>(row_index)];
  for_each_run(row, [&](int64_t at, int64_t n, int32_t head) {
    const int64_t to = (head * (row.len - row.first) + at - row.first) * token_bytes_;
    const auto bytes = static_cast<size_t>(n * token_bytes_);
    std::memcpy(k.bytes() + to, token(row, at, head, 0), bytes);
    std::memcpy(v.bytes() + to, token(row, at, head, side_bytes_), bytes);
  });
}

RowImage DenseLayer::save(int32_t row, Allocator& allocator) const {
  return save_tokens(*this, row, allocator);
}

// A row of its own blocks that has seen first + n tokens and keeps the last n: k, v [num_kv_heads,
// n, head_dim].
DenseLayer::Row DenseLayer::make_row(int64_t first, const TensorView& k, const TensorView& v) {
  const int64_t len = first + k.shape[1];
  Row row;
  row.len = row.first = first;
  row.first_block = row.first / storage_.block_size;
  make_writable(row, len);
  row.len = len;
  for_each_run(row, [&](int64_t at, int64_t n, int32_t head) {
    const Shape run{1, n, spec_.head_dim};
    const auto put = [&](const TensorView& from, int64_t side_offset) {
      copy_into(TensorView::contiguous(token(row, at, head, side_offset), dtype_, run),
                from.slice(0, head, head + 1).slice(1, at - first, at - first + n));
    };
    put(k, 0);
    put(v, side_bytes_);
  });
  return row;
}

std::unique_ptr<Change> DenseLayer::load(std::span<const RowImageView> rows) {
  const std::vector<RowTokens> tokens = image_tokens(rows, spec_, dtype_, max_len());
  for (const RowTokens& row : tokens)
    check_assign(row.first_position, row.first_position + row.k.shape[1]);
  std::vector<Row> loaded;
  loaded.reserve(tokens.size());
  for (const RowTokens& row : tokens) loaded.push_back(make_row(row.first_position, row.k, row.v));
  return replace_rows(rows_, std::move(loaded));
}

void DenseLayer::check_assign(int64_t first_position, int64_t seq_len) const {
  check_window_begin(window(), first_position, seq_len);
  if (max_len() >= 0 && seq_len > max_len()) {
    fail_as(ErrorKind::kNoRoom, "the row has ", seq_len, " tokens, but max_cache_len is ",
            max_len());
  }
}

std::unique_ptr<Change> DenseLayer::assign(std::span<const RowTokens> rows) {
  for (const RowTokens& row : rows) {
    const int64_t len = row.k.shape[1];
    LARDER_ASSERT(row.k.shape == Shape({spec_.num_kv_heads, len, spec_.head_dim}) &&
                  row.v.shape == row.k.shape);
    check_assign(row.first_position, row.first_position + len);
  }
  std::vector<Row> assigned;
  assigned.reserve(rows.size());
  for (const RowTokens& row : rows) {
    const int64_t n = row.k.shape[1], len = row.first_position + n;
    const int64_t skip =
        std::clamp<int64_t>(window_start(window(), len) - rollback() - row.first_position, 0, n);
    assigned.push_back(
        make_row(row.first_position + skip, row.k.slice(1, skip, n), row.v.slice(1, skip, n)));
  }
  return replace_rows(rows_, std::move(assigned));
}

int32_t DenseLayer::shared_block_size() const {
  return storage_.max_blocks == DenseStorage::kUnbounded ? storage_.block_size : 0;
}

BlockPtr DenseLayer::shared_block(int32_t row_index, int64_t index) const {
  const Row& row = rows_[static_cast<size_t>(row_index)];
  LARDER_ASSERT(index * storage_.block_size < row.len);
  if (index * storage_.block_size < row.first) return {};
  return row.blocks[static_cast<size_t>(index - row.first_block)];
}

std::unique_ptr<Change> DenseLayer::adopt(int32_t row_index, int64_t first_block,
                                          std::span<const BlockPtr> blocks, int64_t len) {
  LARDER_ASSERT(row_index >= 0 && seq_len(row_index) == 0);
  Row row;
  row.first_block = first_block;
  row.first = first_block * storage_.block_size;
  row.len = len;
  LARDER_ASSERT(blocks_up_to(row, len) == blocks.size());
  row.blocks.reserve(std::max(blocks.size(), static_cast<size_t>(storage_.listed_blocks)));
  row.blocks.assign(blocks.begin(), blocks.end());
  check_window_begin(window(), row.first, row.len);
  rows_.reserve(static_cast<size_t>(row_index) + 1);
  return prepared([this, row_index, row = std::move(row)]() mutable noexcept {
    if (row_index >= batch()) rows_.resize(static_cast<size_t>(row_index) + 1);
    rows_[static_cast<size_t>(row_index)] = std::move(row);
  });
}

void DenseLayer::check_can_shift(int64_t len, const ContextShift& shift) const {
  check_window_can_shift(window(), len, shift);
}

// Tokens move down their list of blocks, or, where the list now begins at an earlier block and the
// move is no whole number of blocks, up it by less than a block.
std::unique_ptr<Change> DenseLayer::shift(int32_t row_index, const ContextShift& shift) {
  check_row(row_index, batch());
  Row& row = rows_[static_cast<size_t>(row_index)];
  check_shift(shift, row.len, spec_.head_dim);
  check_window_shift(window(), {row_index, row.first, row.len}, shift.keep, shift.discard);
  Row moved;  // what the row will be, but for its blocks
  moved.len = row.len - shift.discard;
  const bool keeps = row.first <= shift.keep;
  moved.first = keeps ? row.first : std::max(row.first - shift.discard, shift.keep);
  moved.first_block = keeps ? row.first_block : moved.first / storage_.block_size;
  own_blocks(row, std::max(row.first, keeps ? shift.keep : int64_t{0}));
  row.blocks.reserve(blocks_up_to(moved, moved.len));
  while (row.blocks.size() + moved.blocks.size() < blocks_up_to(moved, moved.len))
    moved.blocks.push_back(take_block());
  return prepared([this, row_index, keep = shift.keep, discard = shift.discard,
                   cos = std::vector<float>(shift.cos.begin(), shift.cos.end()),
                   sin = std::vector<float>(shift.sin.begin(), shift.sin.end()),
                   moved = std::move(moved)]() mutable noexcept {
    Row& was = rows_[static_cast<size_t>(row_index)];
    for (BlockPtr& block : moved.blocks) was.blocks.push_back(std::move(block));
    moved.blocks = std::move(was.blocks);
    const int64_t begin = std::max(keep, moved.first), count = moved.len - begin;
    const bool down = discard >= (was.first_block - moved.first_block) * storage_.block_size;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t to = begin + (down ? i : count - 1 - i);
      move_token(moved, to, to + discard, was.first_block);
      for (int32_t head = 0; head < spec_.num_kv_heads; ++head)
        turn_key(token(moved, to, head, 0), dtype_, cos, sin);
    }
    was = std::move(moved);
    trim(was);
  });
}

// The token at position `from` of a row whose blocks began at `first_block` goes to position `to`.
void DenseLayer::move_token(const Row& row, int64_t to, int64_t from, int64_t first_block) const {
  const int64_t same = from + (row.first_block - first_block) * storage_.block_size;
  for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
    for (const int64_t side : {int64_t{0}, side_bytes_}) {
      std::memcpy(token(row, to, head, side), token(row, same, head, side),
                  static_cast<size_t>(token_bytes_));
    }
  }
}

}  // namespace larder
