// Whole rows of a sliding layer: moved, shortened, shared, out, and in from another.
#include <algorithm>
#include <cstring>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/image.h"
#include "larder/cache/key_shift.h"
#include "larder/cache/rows.h"
#include "larder/cache/sliding_layer.h"
#include "larder/cache/window.h"

namespace larder {

// An unbounded row gives back the pages past what it keeps; a bounded one keeps them.
void SlidingLayer::trim(Row& row) noexcept {
  if (bounded()) return;
  const size_t need = pages_for(slots_used(row));
  while (row.pages.size() > need) row.pages.pop_back();
}

// A bounded layer keeps the pages of rows that go for later copies.
std::unique_ptr<Change> SlidingLayer::select_rows(std::span<const int32_t> source) {
  if (bounded()) spare_.reserve(std::max(rows_.size(), source.size()));
  return move_rows(
      rows_, source, [this](Row& row) noexcept { retire_blocks(row.pages, spare_); },
      [this]() noexcept {
        for (Row& row : rows_) row.added = 0;
      });
}

std::unique_ptr<Change> SlidingLayer::crop(std::span<const int64_t> len) {
  std::vector<int64_t> kept(std::min(len.size(), rows_.size()));
  for (size_t r = 0; r < kept.size(); ++r) {
    const Row& row = rows_[r];
    kept[r] = std::clamp<int64_t>(len[r], 0, row.len);
    check_window_crop(spec_.window, {static_cast<int64_t>(r), row.first, row.len}, kept[r]);
  }
  return prepared([this, kept = std::move(kept)]() noexcept {
    for (size_t r = 0; r < kept.size(); ++r) {
      Row& row = rows_[r];
      row.len = kept[r];
      row.first = row.len == 0 ? 0 : std::min(row.first, row.len);
      row.added = 0;
      trim(row);
    }
  });
}

void SlidingLayer::reset() noexcept {
  rows_.clear();
  spare_.clear();
  step_.reset();
}

std::unique_ptr<CacheLayer> SlidingLayer::fork() const {
  auto forked = std::make_unique<SlidingLayer>(spec_, dtype_, storage_, source_);
  forked->rows_ = rows_;
  for (Row& row : forked->rows_) row.added = 0;
  return forked;
}

void SlidingLayer::for_each_block(FunctionRef<void(CacheBlock&)> body) const {
  for (const Row& row : rows_)
    for (const BlockPtr& page : row.pages) body(*page);
  for (const BlockPtr& page : spare_) body(*page);
  if (step_) body(*step_);
}

std::string SlidingLayer::format() const {
  return str("sliding ", dtype_name(dtype_), ", window ", spec_.window);
}

void SlidingLayer::read(int32_t row_index, const TensorView& k, const TensorView& v) const {
  LARDER_ASSERT(k.dtype == dtype_ && v.dtype == dtype_ && k.is_contiguous() && v.is_contiguous());
  const int64_t count = kept_len(row_index), head_bytes = side_bytes_ / spec_.num_kv_heads;
  for (int64_t i = 0; i < count; ++i) {
    const Row& row = rows_[static_cast<size_t>(row_index)];
    const std::byte* from = token(row, row.first + i);
    for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
      const int64_t to = (head * count + i) * head_bytes;
      const std::byte* key = from + head * head_bytes;
      std::memcpy(k.bytes() + to, key, static_cast<size_t>(head_bytes));
      std::memcpy(v.bytes() + to, key + side_bytes_, static_cast<size_t>(head_bytes));
    }
  }
}

RowImage SlidingLayer::save(int32_t row, Allocator& allocator) const {
  return save_tokens(*this, row, allocator);
}

void SlidingLayer::check_assign(int64_t first, int64_t len) const {
  if (bounded() && len > max_len()) {
    fail_as(ErrorKind::kNoRoom, "the row has ", len, " tokens, but max_cache_len is ", max_len());
  }
  check_window_begin(spec_.window, first, len);
}

// A row with pages of its own that has seen first + n tokens: the last of k and v
// [num_kv_heads, n, head_dim] that the ring can keep.
SlidingLayer::Row SlidingLayer::make_row(int64_t first, const TensorView& k, const TensorView& v) {
  const int64_t n = k.shape[1], skip = std::max<int64_t>(n - storage_.capacity, 0);
  Row row;
  row.len = row.first = first + skip;
  make_writable(row, static_cast<int32_t>(n - skip));
  row.len = first + n;
  const Shape one{spec_.num_kv_heads, 1, spec_.head_dim};
  for (int64_t i = skip; i < n; ++i) {
    std::byte* to = token(row, first + i);
    copy_into(TensorView::contiguous(to, dtype_, one), k.slice(1, i, i + 1));
    copy_into(TensorView::contiguous(to + side_bytes_, dtype_, one), v.slice(1, i, i + 1));
  }
  return row;
}

std::unique_ptr<Change> SlidingLayer::load(std::span<const RowImageView> rows) {
  return assign(image_tokens(rows, spec_, dtype_, max_len()));
}

std::unique_ptr<Change> SlidingLayer::assign(std::span<const RowTokens> rows) {
  for (const RowTokens& row : rows) {
    const int64_t n = row.k.shape[1];
    LARDER_ASSERT(row.k.shape == Shape({spec_.num_kv_heads, n, spec_.head_dim}) &&
                  row.v.shape == row.k.shape);
    check_assign(row.first_position, row.first_position + n);
  }
  std::vector<Row> assigned;
  for (const RowTokens& row : rows) assigned.push_back(make_row(row.first_position, row.k, row.v));
  return replace_rows(rows_, std::move(assigned));
}

std::unique_ptr<Change> SlidingLayer::shift(int32_t row_index, const ContextShift& shift) {
  LARDER_ASSERT(row_index >= 0 && row_index < batch());
  Row& row = rows_[static_cast<size_t>(row_index)];
  check_shift(shift, row.len, spec_.head_dim);
  check_window_shift(spec_.window, {row_index, row.first, row.len}, shift.keep, shift.discard);
  const int64_t end = shift.keep + shift.discard;
  for (size_t page = 0; page < row.pages.size(); ++page) own_page(row, page);
  return prepared([this, row_index, keep = shift.keep, end,
                   cos = std::vector<float>(shift.cos.begin(), shift.cos.end()),
                   sin = std::vector<float>(shift.sin.begin(), shift.sin.end())]() noexcept {
    Row& moved = rows_[static_cast<size_t>(row_index)];
    move_up(moved, keep, end);
    const int64_t head_bytes = side_bytes_ / spec_.num_kv_heads;
    for (int64_t position = std::max(keep, moved.first); position < moved.len; ++position) {
      for (int64_t head = 0; head < spec_.num_kv_heads; ++head)
        turn_key(token(moved, position) + head * head_bytes, dtype_, cos, sin);
    }
    moved.added = 0;
    trim(moved);
  });
}

// A ring may keep more than this asks for, but need not.
void SlidingLayer::check_can_shift(int64_t len, const ContextShift& shift) const {
  check_window_can_shift(spec_.window, len, shift);
}

// Tokens [from, len) go to the positions from `to` on; what lay in between is gone.
void SlidingLayer::move_up(Row& row, int64_t to, int64_t from) noexcept {
  const int64_t discard = from - to, capacity = storage_.capacity;
  if (row.first <= to) {
    // What lies in a token's new slot was moved before it, or goes.
    for (int64_t position = from; position < row.len; ++position)
      std::memcpy(token(row, position - discard), token(row, position),
                  static_cast<size_t>(token_bytes_));
  } else if (capacity > 0) {
    // A ring that begins behind `to` turns as a whole: by three reversals, without room of its own.
    const auto reverse = [&](int64_t begin, int64_t end) {
      for (--end; begin < end; ++begin, --end) {
        std::byte* slot = token(row, begin);
        std::swap_ranges(slot, slot + token_bytes_, token(row, end));
      }
    };
    const int64_t turn = discard % capacity;
    reverse(0, turn);
    reverse(turn, capacity);
    reverse(0, capacity);
  }
  if (row.first > to) row.first = std::max(row.first - discard, to);
  row.len -= discard;
}

}  // namespace larder
