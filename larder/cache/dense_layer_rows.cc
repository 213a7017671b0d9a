// Whole rows of a dense layer: out, in from another, and moved along their positions.
#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/dense_layer.h"
#include "larder/cache/image.h"
#include "larder/cache/key_shift.h"
#include "larder/cache/rows.h"

namespace larder {

template <class Body>
void DenseLayer::for_each_run(const Row& row, const Body& body) const {
  for (int64_t at = 0; at < row.len; at += storage_.block_size) {
    const int64_t n = std::min<int64_t>(storage_.block_size, row.len - at);
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) body(at, n, head);
  }
}

void DenseLayer::read(int32_t row_index, const TensorView& k, const TensorView& v) const {
  LARDER_ASSERT(k.dtype == dtype_ && v.dtype == dtype_ && k.is_contiguous() && v.is_contiguous());
  if (row_index >= batch()) return;
  const Row& row = rows_[static_cast<size_t>(row_index)];
  for_each_run(row, [&](int64_t at, int64_t n, int32_t head) {
    const int64_t to = (head * row.len + at) * token_bytes_;
    const auto bytes = static_cast<size_t>(n * token_bytes_);
    std::memcpy(k.bytes() + to, token(row, at, head, 0), bytes);
    std::memcpy(v.bytes() + to, token(row, at, head, side_bytes_), bytes);
  });
}

RowImage DenseLayer::save(int32_t row, Allocator& allocator) const {
  return save_tokens(*this, row, allocator);
}

// A row of its own blocks with these tokens.
DenseLayer::Row DenseLayer::make_row(const TensorView& k, const TensorView& v, int64_t len) {
  Row row;
  make_writable(row, len);
  row.len = len;
  for_each_run(row, [&](int64_t at, int64_t n, int32_t head) {
    const Shape run{1, n, spec_.head_dim};
    const auto put = [&](const TensorView& from, int64_t side_offset) {
      copy_into(TensorView::contiguous(token(row, at, head, side_offset), dtype_, run),
                from.slice(0, head, head + 1).slice(1, at, at + n));
    };
    put(k, 0);
    put(v, side_bytes_);
  });
  return row;
}

std::unique_ptr<Change> DenseLayer::load(std::span<const RowImageView> rows) {
  for (const RowImageView& row : rows) {
    check_image(row, {"k", "v"}, max_len());
    const Shape shape{spec_.num_kv_heads, row.seq_len, spec_.head_dim};
    for (const std::string_view side : {"k", "v"}) image_tensor(row, side, dtype_, shape);
  }
  std::vector<Row> loaded;
  for (const RowImageView& row : rows) {
    const Shape shape{spec_.num_kv_heads, row.seq_len, spec_.head_dim};
    loaded.push_back(make_row(image_tensor(row, "k", dtype_, shape),
                              image_tensor(row, "v", dtype_, shape), row.seq_len));
  }
  return replace_rows(rows_, std::move(loaded));
}

void DenseLayer::check_assign(int64_t first_position, int64_t seq_len) const {
  if (first_position > 0) {
    fail_as(ErrorKind::kUnsupported, "the row begins at position ", first_position, ", but a ",
            format(), " layer keeps every token from position 0 on");
  }
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
  for (const RowTokens& row : rows) assigned.push_back(make_row(row.k, row.v, row.k.shape[1]));
  return replace_rows(rows_, std::move(assigned));
}

std::unique_ptr<Change> DenseLayer::shift(int32_t row_index, const ContextShift& shift) {
  LARDER_ASSERT(row_index >= 0 && row_index < batch());
  Row& row = rows_[static_cast<size_t>(row_index)];
  check_shift(shift, row.len, spec_.head_dim);
  own_blocks(row, shift.keep);
  return prepared([this, row_index, keep = shift.keep, discard = shift.discard,
                   cos = std::vector<float>(shift.cos.begin(), shift.cos.end()),
                   sin = std::vector<float>(shift.sin.begin(), shift.sin.end())]() noexcept {
    Row& moved = rows_[static_cast<size_t>(row_index)];
    for (int64_t i = keep; i + discard < moved.len; ++i) {
      for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
        for (const int64_t side : {int64_t{0}, side_bytes_}) {
          std::memcpy(token(moved, i, head, side), token(moved, i + discard, head, side),
                      static_cast<size_t>(token_bytes_));
        }
        turn_key(token(moved, i, head, 0), dtype_, cos, sin);
      }
    }
    moved.len -= discard;
    trim(moved);
  });
}

}  // namespace larder
