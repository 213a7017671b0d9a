#include "larder/cache/dense_layer.h"

#include <algorithm>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/check_step.h"
#include "larder/cache/rows.h"
#include "larder/cache/window.h"
#include "larder/tensor/kernels.h"

namespace larder {
DenseLayer::DenseLayer(const LayerSpec& spec, DType dtype, DenseStorage storage,
                       std::shared_ptr<BlockSource> blocks)
    : spec_(spec),
      dtype_(dtype),
      storage_(storage),
      source_(std::move(blocks)),
      token_bytes_(checked_mul(spec.head_dim, static_cast<int64_t>(dtype_size(dtype)))),
      head_bytes_(checked_mul(token_bytes_, storage.block_size)),
      side_bytes_(checked_mul(head_bytes_, spec.num_kv_heads)) {
  checked_mul(side_bytes_, 2);
}

int64_t DenseLayer::seq_len(int32_t row) const {
  return row < batch() ? rows_[static_cast<size_t>(row)].len : 0;
}

int64_t DenseLayer::kept_len(int32_t row) const {
  return row < batch() ? rows_[static_cast<size_t>(row)].len - rows_[static_cast<size_t>(row)].first
                       : 0;
}

// Of the blocks [first_block, ...) of the row, those that tokens up to `len` lie in.
size_t DenseLayer::blocks_up_to(const Row& row, int64_t len) const {
  return static_cast<size_t>(
      std::max<int64_t>(0, ceil_div(len, storage_.block_size) - row.first_block));
}

int64_t DenseLayer::blocks_of(int64_t len, int64_t step) const {
  return most_blocks({window(), rollback(), storage_.block_size}, len, step);
}

int64_t DenseLayer::max_len() const {
  if (storage_.max_blocks == DenseStorage::kUnbounded) return -1;
  return int64_t{storage_.max_blocks} * storage_.block_size;
}

void DenseLayer::reserve(const Step& step) {
  check_step(*this, step);
  int64_t most_blocks = std::max(1, storage_.listed_blocks);
  int32_t rows = batch();
  for (int32_t b = 0; b < step.batch; ++b) {
    rows = std::max(rows, step.slot[b] + 1);
    const int64_t len = seq_len(step.slot[b]) + step.q_len(b);
    most_blocks = std::max(most_blocks, ceil_div(len, storage_.block_size));
  }
  const auto n = static_cast<size_t>(step.batch);
  table_.reserve(n * static_cast<size_t>(most_blocks));
  first_position_.assign(n, 0);
  begin_.assign(n, 0);
  len_.assign(n, 0);
  rows_before_ = rows_.size();
  rows_.resize(static_cast<size_t>(rows));
  try {
    for (int32_t b = 0; b < step.batch; ++b) {
      Row& row = rows_[static_cast<size_t>(step.slot[b])];
      drop_behind_window(row);
      make_writable(row, row.len + step.q_len(b));
    }
  } catch (...) {
    cancel(step);
    throw;
  }
}

void DenseLayer::drop_behind_window(Row& row) const noexcept {
  if (!slides()) return;
  const int64_t gone = std::max<int64_t>(0, window_start(window(), row.len) - storage_.rollback) /
                       storage_.block_size;
  // A crop may have brought the window back to blocks that are still there.
  const auto count = std::min(row.blocks.size(),
                              static_cast<size_t>(std::max(gone - row.first_block, int64_t{0})));
  if (count == 0) return;
  row.blocks.erase(row.blocks.begin(), row.blocks.begin() + static_cast<ptrdiff_t>(count));
  row.first_block += static_cast<int64_t>(count);
  row.first = std::max(row.first, row.first_block * storage_.block_size);
}

// Gives the row blocks of its own from its first unwritten token up to new_len.
void DenseLayer::make_writable(Row& row, int64_t new_len) {
  if (new_len == row.len) return;
  own_blocks(row, row.len);
  const size_t need = blocks_up_to(row, new_len);
  row.blocks.reserve(std::max(need, static_cast<size_t>(storage_.listed_blocks)));
  while (row.blocks.size() < need) {
    row.blocks.push_back(take_block());
    row.blocks.back()->mark_dirty();
  }
}

// Copies each block from token `from` on that another row or fork also has: what it holds of this
// row's tokens.
void DenseLayer::own_blocks(Row& row, int64_t from) {
  const int64_t first = std::max<int64_t>(0, from / storage_.block_size - row.first_block);
  for (auto i = static_cast<size_t>(first); i < row.blocks.size(); ++i) {
    BlockPtr& block = row.blocks[i];
    const int64_t begin = (row.first_block + static_cast<int64_t>(i)) * storage_.block_size;
    if (block.use_count() > 1) {
      BlockPtr copy = take_block();
      const auto used = static_cast<size_t>(
          std::clamp<int64_t>(row.len - begin, 0, storage_.block_size) * token_bytes_);
      for (int64_t head = 0; head < 2 * int64_t{spec_.num_kv_heads}; ++head)
        source_->copy(*copy, *block, static_cast<size_t>(head * head_bytes_), used);
      block = std::move(copy);
    }
    block->mark_dirty();
  }
}

BlockPtr DenseLayer::take_block() {
  return larder::take_block(spare_, *source_, static_cast<size_t>(2 * side_bytes_));
}

std::byte* DenseLayer::token(const Row& row, int64_t index, int32_t head,
                             int64_t side_offset) const {
  const auto block = static_cast<size_t>(index / storage_.block_size - row.first_block);
  return row.blocks[block]->data() + side_offset + head * head_bytes_ +
         (index % storage_.block_size) * token_bytes_;
}

void DenseLayer::write(const Exec& exec, const TensorView& x, int64_t side_offset,
                       const Step& step) const {
  const int64_t row_floats = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  for (int32_t b = 0; b < step.batch; ++b) {
    const Row& row = rows_[static_cast<size_t>(step.slot[b])];
    for (int32_t i = 0; i < step.q_len(b); ++i) {
      const float* from = x.as<float>() + (step.q_start[b] + i) * row_floats;
      for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
        exec.kernels.store(token(row, row.len + i, head, side_offset), dtype_,
                           from + int64_t{head} * spec_.head_dim, spec_.head_dim);
      }
    }
  }
}

KVView DenseLayer::append(const Exec& exec, const TensorView& k, const TensorView& v,
                          const Step& step) {
  write(exec, k, 0, step);
  write(exec, v, side_bytes_, step);
  return view_of(step);
}

KVView DenseLayer::view_of(const Step& step) {
  size_t stride = 1;
  int32_t longest = 0;
  for (int32_t b = 0; b < step.batch; ++b) {
    const Row& row = rows_[static_cast<size_t>(step.slot[b])];
    const auto i = static_cast<size_t>(b);
    const int64_t len = row.len + step.q_len(b);
    first_position_[i] = row.first;
    begin_[i] = static_cast<int32_t>(row.first - row.first_block * storage_.block_size);
    len_[i] = static_cast<int32_t>(len - row.first);
    longest = std::max(longest, len_[i]);
    stride = std::max(stride, blocks_up_to(row, len));
  }
  table_.assign(static_cast<size_t>(step.batch) * stride, 0);
  for (int32_t b = 0; b < step.batch; ++b) {
    const Row& row = rows_[static_cast<size_t>(step.slot[b])];
    const size_t blocks = blocks_up_to(row, row.len + step.q_len(b));
    for (size_t i = 0; i < blocks; ++i) {
      table_[static_cast<size_t>(b) * stride + i] =
          reinterpret_cast<intptr_t>(row.blocks[i]->data());
    }
  }
  KVView view{1, spec_.num_kv_heads, spec_.head_dim, {}};
  KVSegment& segment = view.segment[0];
  segment.k = {0, dtype_, head_bytes_, token_bytes_, {}};
  segment.v = {static_cast<uintptr_t>(side_bytes_), dtype_, head_bytes_, token_bytes_, {}};
  segment.block_table = table_.data();
  segment.table_stride = static_cast<int32_t>(stride);
  segment.block_size = storage_.block_size;
  segment.first_position = first_position_.data();
  segment.begin = begin_.data();
  segment.len = len_.data();
  segment.max_len = longest;
  return view;
}

void DenseLayer::commit(const Step& step) {
  if (step.tentative) return;
  for (int32_t b = 0; b < step.batch; ++b)
    rows_[static_cast<size_t>(step.slot[b])].len += step.q_len(b);
}

void DenseLayer::accept(const Step& step, std::span<const int32_t> count) {
  for (int32_t b = 0; b < step.batch; ++b) {
    LARDER_ASSERT(count[static_cast<size_t>(b)] >= 0 &&
                  count[static_cast<size_t>(b)] <= step.q_len(b));
    Row& row = rows_[static_cast<size_t>(step.slot[b])];
    row.len += count[static_cast<size_t>(b)];
    trim(row);
  }
}

void DenseLayer::cancel(const Step& step) noexcept {
  for (int32_t b = 0; b < step.batch; ++b) {
    const auto slot = static_cast<size_t>(step.slot[b]);
    if (slot >= rows_.size()) continue;
    if (step.q_len(b) > 0) rows_[slot].len = step.position[step.q_start[b]];
    trim(rows_[slot]);
  }
  if (rows_.size() > rows_before_) rows_.resize(rows_before_);
}

// A growing row gives back the blocks past its length; a fixed one keeps its block.
void DenseLayer::trim(Row& row) noexcept {
  if (storage_.max_blocks != DenseStorage::kUnbounded) return;
  const size_t need = blocks_up_to(row, row.len);
  while (row.blocks.size() > need) row.blocks.pop_back();
}

// A fixed layer keeps the blocks of rows that go for later copies.
std::unique_ptr<Change> DenseLayer::select_rows(std::span<const int32_t> source) {
  if (storage_.max_blocks != DenseStorage::kUnbounded)
    spare_.reserve(std::max(rows_.size(), source.size()));
  return move_rows(
      rows_, source, [this](Row& row) noexcept { retire_blocks(row.blocks, spare_); },
      []() noexcept {});
}

std::unique_ptr<Change> DenseLayer::crop(std::span<const int64_t> len) {
  std::vector<int64_t> kept(std::min(len.size(), rows_.size()));
  for (size_t r = 0; r < kept.size(); ++r) {
    const Row& row = rows_[r];
    kept[r] = std::clamp<int64_t>(len[r], 0, row.len);
    check_window_crop(window(), {static_cast<int64_t>(r), row.first, row.len}, kept[r]);
  }
  return prepared([this, kept = std::move(kept)]() noexcept {
    for (size_t r = 0; r < kept.size(); ++r) {
      Row& row = rows_[r];
      row.len = kept[r];
      trim(row);
      if (row.len >= row.first && row.len > 0) continue;
      row.first = row.len;  // a window of 1 may lack them
      row.first_block = row.len / storage_.block_size;
    }
  });
}

void DenseLayer::reset() noexcept {
  rows_.clear();
  spare_.clear();
}

std::unique_ptr<CacheLayer> DenseLayer::fork() const {
  auto forked = std::make_unique<DenseLayer>(spec_, dtype_, storage_, source_);
  forked->rows_ = rows_;
  return forked;
}

void DenseLayer::for_each_block(FunctionRef<void(CacheBlock&)> body) const {
  for (const Row& row : rows_)
    for (const BlockPtr& block : row.blocks) body(*block);
  for (const BlockPtr& block : spare_) body(*block);
}

void DenseLayer::for_each_block_of(int32_t index, FunctionRef<void(const RowBlock&)> body) const {
  if (index >= batch()) return;
  const Row& row = rows_[static_cast<size_t>(index)];
  int64_t begin = row.first_block * storage_.block_size;
  for (const BlockPtr& block : row.blocks) {
    const int64_t end = begin + storage_.block_size;
    const int64_t used = std::min(end, row.len) - std::max(begin, row.first);
    body({*block, storage_.block_size, std::max<int64_t>(used, 0)});
    begin = end;
  }
}

std::string DenseLayer::format() const {
  if (slides()) return str("paged ", dtype_name(dtype_), ", window ", spec_.window);
  return str("dense ", dtype_name(dtype_));
}

}  // namespace larder
