#include "larder/cache/sliding_layer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/check_step.h"
#include "larder/cache/rows.h"
#include "larder/cache/window.h"
#include "larder/tensor/kernels.h"

namespace larder {

SlidingLayer::SlidingLayer(const LayerSpec& spec, DType dtype, SlidingStorage storage,
                           std::shared_ptr<BlockSource> blocks)
    : spec_(spec),
      dtype_(dtype),
      storage_(storage),
      source_(std::move(blocks)),
      side_bytes_(checked_mul(checked_mul(spec.num_kv_heads, spec.head_dim),
                              static_cast<int64_t>(dtype_size(dtype)))),
      token_bytes_(checked_mul(side_bytes_, 2)) {
  LARDER_ASSERT(spec.window > 0 && storage.page_size > 0 && storage.capacity <= INT32_MAX);
  checked_mul(token_bytes_, storage.page_size);
}

int64_t SlidingLayer::seq_len(int32_t row) const {
  return row < batch() ? rows_[static_cast<size_t>(row)].len : 0;
}

int64_t SlidingLayer::kept_len(int32_t row) const {
  return row < batch() ? rows_[static_cast<size_t>(row)].len - rows_[static_cast<size_t>(row)].first
                       : 0;
}

int64_t SlidingLayer::sliding_window() const {
  return bounded() ? std::min(spec_.window, storage_.max_len) : spec_.window;
}

int64_t SlidingLayer::page_tokens(size_t page) const {
  const int64_t begin = static_cast<int64_t>(page) * storage_.page_size;
  return std::min<int64_t>(storage_.page_size, storage_.capacity - begin);
}

size_t SlidingLayer::pages_for(int64_t slots) const {
  if (bounded() && slots > 0) slots = storage_.capacity;
  return static_cast<size_t>(ceil_div(slots, storage_.page_size));
}

// Slots [0, n) hold what the row keeps. A row that has wrapped needs them all.
int64_t SlidingLayer::slots_used(const Row& row) const {
  return row.first > 0 ? storage_.capacity : std::min(row.len, storage_.capacity);
}

std::byte* SlidingLayer::token(const Row& row, int64_t position) const {
  const int64_t slot = position % storage_.capacity;
  return row.pages[static_cast<size_t>(slot / storage_.page_size)]->data() +
         slot % storage_.page_size * token_bytes_;
}

std::byte* SlidingLayer::step_token(int64_t index) const {
  return step_->data() + index * token_bytes_;
}

void SlidingLayer::reserve(const Step& step) {
  check_step(*this, step);
  int32_t rows = batch();
  for (int32_t b = 0; b < step.batch; ++b) rows = std::max(rows, step.slot[b] + 1);
  rows_before_ = rows_.size();
  rows_.resize(static_cast<size_t>(rows));
  for (Row& row : rows_) row.added = 0;
  try {
    // The last step's block goes first, so that two are never held at once.
    const auto bytes = static_cast<size_t>(checked_mul(step.total_q, token_bytes_));
    if (step_ && step_->size() != bytes) step_.reset();
    for (int32_t b = 0; b < step.batch; ++b)
      make_writable(rows_[static_cast<size_t>(step.slot[b])], step.q_len(b));
    if (!step_ && bytes > 0) step_ = source_->make(bytes);
    if (step_) step_->mark_dirty();
    size_view(step);
  } catch (...) {
    cancel(step);
    throw;
  }
}

// Gives the row pages of its own where its next `count` tokens go.
void SlidingLayer::make_writable(Row& row, int32_t count) {
  const int64_t capacity = storage_.capacity, n = std::min<int64_t>(count, capacity);
  if (n == 0) return;
  const size_t need = pages_for(std::max(slots_used(row), std::min(row.len + n, capacity)));
  row.pages.reserve(need);
  while (row.pages.size() < need) row.pages.push_back(take_page(row.pages.size()));
  const int64_t begin = row.len % capacity, end = begin + n;
  for (size_t page = 0; page < need; ++page) {
    const int64_t first = static_cast<int64_t>(page) * storage_.page_size;
    const bool wrapped_into = first < end - capacity;
    if (wrapped_into || (first < end && begin < first + page_tokens(page))) own_page(row, page);
  }
}

// Copies a page that another row or fork also has.
void SlidingLayer::own_page(Row& row, size_t page) {
  BlockPtr& held = row.pages[page];
  if (held.use_count() > 1) {
    BlockPtr copy = take_page(page);
    const int64_t first = static_cast<int64_t>(page) * storage_.page_size;
    const int64_t used = std::clamp<int64_t>(slots_used(row) - first, 0, page_tokens(page));
    source_->copy(*copy, *held, 0, static_cast<size_t>(used * token_bytes_));
    held = std::move(copy);
  }
  held->mark_dirty();
}

BlockPtr SlidingLayer::take_page(size_t page) {
  return take_block(spare_, *source_, static_cast<size_t>(page_tokens(page) * token_bytes_));
}

KVView SlidingLayer::append(const Exec& exec, const TensorView& k, const TensorView& v,
                            const Step& step) {
  const int64_t floats = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  for (int64_t i = 0; i < step.total_q; ++i) {
    exec.kernels.store(step_token(i), dtype_, k.as<float>() + i * floats, floats);
    exec.kernels.store(step_token(i) + side_bytes_, dtype_, v.as<float>() + i * floats, floats);
  }
  KVView view{2, spec_.num_kv_heads, spec_.head_dim, {}};
  show_ring(step, view.segment[0]);
  show_step(step, view.segment[1]);
  const int64_t head_bytes = side_bytes_ / spec_.num_kv_heads;
  for (KVSegment& segment : std::span(view.segment).first(2)) {
    segment.k = {0, dtype_, head_bytes, token_bytes_, {}};
    segment.v = {static_cast<uintptr_t>(side_bytes_), dtype_, head_bytes, token_bytes_, {}};
  }
  return view;
}

// Makes room for the lists that the step's view points to.
void SlidingLayer::size_view(const Step& step) {
  const auto rows = static_cast<size_t>(step.batch);
  size_t most_pages = 1;
  for (int32_t b = 0; b < step.batch; ++b)
    most_pages = std::max(most_pages, rows_[static_cast<size_t>(step.slot[b])].pages.size());
  ring_list_.table.reserve(rows * most_pages);
  step_list_.table.reserve(rows);
  for (Listing* list : {&ring_list_, &step_list_}) {
    list->first_position.assign(rows, 0);
    list->begin.assign(rows, 0);
    list->len.assign(rows, 0);
  }
}

// The part of the ring that the step's queries may see; a rollback margin stays out of sight.
void SlidingLayer::show_ring(const Step& step, KVSegment& segment) {
  size_t stride = 1;
  for (int32_t b = 0; b < step.batch; ++b)
    stride = std::max(stride, rows_[static_cast<size_t>(step.slot[b])].pages.size());
  ring_list_.table.assign(static_cast<size_t>(step.batch) * stride, 0);
  for (int32_t b = 0; b < step.batch; ++b) {
    const Row& row = rows_[static_cast<size_t>(step.slot[b])];
    const auto i = static_cast<size_t>(b);
    for (size_t page = 0; page < row.pages.size(); ++page)
      ring_list_.table[i * stride + page] = reinterpret_cast<intptr_t>(row.pages[page]->data());
    const int64_t first = std::max(row.first, window_start(spec_.window, row.len));
    ring_list_.first_position[i] = first;
    ring_list_.len[i] = static_cast<int32_t>(row.len - first);
    if (storage_.capacity > 0)
      ring_list_.begin[i] = static_cast<int32_t>(first % storage_.capacity);
    segment.max_len = std::max(segment.max_len, ring_list_.len[i]);
  }
  segment.table_stride = static_cast<int32_t>(stride);
  segment.block_size = storage_.page_size;
  segment.wrap = static_cast<int32_t>(storage_.capacity);
  segment.block_table = ring_list_.table.data();
  segment.first_position = ring_list_.first_position.data();
  segment.begin = ring_list_.begin.data();
  segment.len = ring_list_.len.data();
}

void SlidingLayer::show_step(const Step& step, KVSegment& segment) {
  step_list_.table.assign(static_cast<size_t>(step.batch), 0);
  for (int32_t b = 0; b < step.batch; ++b) {
    const auto i = static_cast<size_t>(b);
    if (step.q_len(b) > 0)
      step_list_.table[i] = reinterpret_cast<intptr_t>(step_token(step.q_start[b]));
    step_list_.first_position[i] = rows_[static_cast<size_t>(step.slot[b])].len;
    step_list_.len[i] = step.q_len(b);
    segment.max_len = std::max(segment.max_len, step.q_len(b));
  }
  segment.table_stride = 1;
  segment.block_size = std::max(step.total_q, 1);
  segment.block_table = step_list_.table.data();
  segment.first_position = step_list_.first_position.data();
  segment.begin = step_list_.begin.data();
  segment.len = step_list_.len.data();
}

void SlidingLayer::commit(const Step& step) {
  if (step.tentative) return;
  for (int32_t b = 0; b < step.batch; ++b)
    take(rows_[static_cast<size_t>(step.slot[b])], step.q_start[b], step.q_len(b));
}

void SlidingLayer::accept(const Step& step, std::span<const int32_t> count) {
  for (int32_t b = 0; b < step.batch; ++b) {
    const int32_t n = count[static_cast<size_t>(b)];
    LARDER_ASSERT(n >= 0 && n <= step.q_len(b));
    Row& row = rows_[static_cast<size_t>(step.slot[b])];
    take(row, step.q_start[b], n);
    trim(row);
  }
}

// Lets the newest of the step's tokens [at, at + count), which begin at position row.len, change
// places with what the ring holds in their slots. Doing it twice changes nothing.
void SlidingLayer::exchange(Row& row, int64_t at, int64_t count) noexcept {
  for (int64_t i = std::max<int64_t>(count - storage_.capacity, 0); i < count; ++i) {
    std::byte* mine = step_token(at + i);
    std::swap_ranges(mine, mine + token_bytes_, token(row, row.len + i));
  }
}

void SlidingLayer::take(Row& row, int64_t at, int64_t count) noexcept {
  exchange(row, at, count);
  row.added = count;
  row.first_before = row.first;
  row.len += count;
  row.first = std::max(row.first, row.len - storage_.capacity);
}

void SlidingLayer::cancel(const Step& step) noexcept {
  for (int32_t b = 0; b < step.batch; ++b) {
    const auto slot = static_cast<size_t>(step.slot[b]);
    if (slot >= rows_.size()) continue;
    Row& row = rows_[slot];
    if (row.added > 0) {
      const int64_t count = std::exchange(row.added, 0);
      LARDER_ASSERT(step_ && count <= step.q_len(b));
      row.len -= count;
      row.first = row.first_before;
      exchange(row, step.q_start[b], count);
    }
    LARDER_ASSERT(step.q_len(b) == 0 || row.len == step.position[step.q_start[b]]);
    trim(row);
  }
  if (rows_.size() > rows_before_) rows_.resize(rows_before_);
  step_.reset();
}

}  // namespace larder
