// Whole rows of a sliding layer: moved, shortened, shared, out, and in from another.
#include <algorithm>
#include <cstring>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/sliding_layer.h"

namespace larder {

// An unbounded row gives back the pages past what it keeps; a bounded one keeps them.
void SlidingLayer::trim(Row& row) noexcept {
  if (bounded()) return;
  const size_t need = pages_for(slots_used(row));
  while (row.pages.size() > need) row.pages.pop_back();
}

// Lets go of a row's pages; a bounded layer keeps those that nobody else has for later copies.
void SlidingLayer::retire(Row& row) noexcept {
  for (BlockPtr& page : row.pages) {
    if (bounded() && page.use_count() == 1 && spare_.size() < spare_.capacity())
      spare_.push_back(std::move(page));
  }
  row.pages.clear();
}

std::unique_ptr<Change> SlidingLayer::select_rows(std::span<const int32_t> source) {
  if (rows_.empty()) return prepared([]() noexcept {});  // never written: nothing to move
  std::vector<std::pair<size_t, Row>> moved;
  for (size_t i = 0; i < source.size(); ++i) {
    const int32_t row = source[i];
    if (row < 0 || row >= batch()) fail("row ", row, " of a cache of ", batch(), " rows");
    if (static_cast<size_t>(row) != i) moved.emplace_back(i, rows_[static_cast<size_t>(row)]);
  }
  rows_.reserve(source.size());
  if (bounded()) spare_.reserve(rows_.size());
  return prepared([this, batch = source.size(), moved = std::move(moved)]() mutable noexcept {
    for (size_t i = batch; i < rows_.size(); ++i) retire(rows_[i]);
    rows_.resize(batch);
    for (auto& [index, row] : moved) {
      std::swap(rows_[index], row);
      retire(row);
    }
    for (Row& row : rows_) row.added = 0;
  });
}

std::unique_ptr<Change> SlidingLayer::crop(std::span<const int64_t> len) {
  std::vector<int64_t> kept(std::min(len.size(), rows_.size()));
  for (size_t r = 0; r < kept.size(); ++r) {
    const Row& row = rows_[r];
    kept[r] = std::clamp<int64_t>(len[r], 0, row.len);
    const int64_t needed = first_needed(kept[r]);
    if (kept[r] < row.len && needed < kept[r] && needed < row.first) {
      fail_as(ErrorKind::kUnsupported, "row ", r, " cannot be cropped from ", row.len, " to ",
              kept[r], " tokens: a window of ", spec_.window, " needs those from position ", needed,
              ", but the layer keeps only those from ", row.first,
              "; a larger rollback keeps more");
    }
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

std::unique_ptr<Change> SlidingLayer::shift(int32_t /*row*/, const ContextShift& /*shift*/) {
  fail_as(ErrorKind::kUnsupported, "shift");
}
RowImage SlidingLayer::save(int32_t /*row*/, Allocator& /*allocator*/) const {
  fail_as(ErrorKind::kUnsupported, "save");
}
std::unique_ptr<Change> SlidingLayer::load(std::span<const RowImageView> /*rows*/) {
  fail_as(ErrorKind::kUnsupported, "load");
}
std::unique_ptr<Change> SlidingLayer::assign(std::span<const RowTokens> /*rows*/) {
  fail_as(ErrorKind::kUnsupported, "assign");
}

}  // namespace larder
