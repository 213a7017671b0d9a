#include "larder/cache/state_layer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/image.h"
#include "larder/cache/kinds.h"
#include "larder/cache/rows.h"

namespace larder {

FixedStateLayer::FixedStateLayer(const LayerSpec& spec, std::shared_ptr<BlockSource> blocks)
    : spec_(spec),
      source_(std::move(blocks)),
      conv_floats_(checked_mul(spec.conv_channels, spec.conv_kernel)),
      floats_(checked_add(conv_floats_, spec.state_size)) {
  checked_mul(floats_, static_cast<int64_t>(sizeof(float)));
}

int64_t FixedStateLayer::seq_len(int32_t row) const {
  return row < batch() ? rows_[static_cast<size_t>(row)].len : 0;
}

const FixedStateLayer::Held& FixedStateLayer::at(int32_t row) const {
  LARDER_ASSERT(row >= 0 && row < batch());
  return rows_[static_cast<size_t>(row)];
}

float* FixedStateLayer::floats(const BlockPtr& block, int64_t offset) const {
  return reinterpret_cast<float*>(block->data()) + offset;
}

const float* FixedStateLayer::conv_of(int32_t row) const { return floats(at(row).now, 0); }
const float* FixedStateLayer::state_of(int32_t row) const {
  return floats(at(row).now, conv_floats_);
}

void FixedStateLayer::check(const Step& step) const {
  for (int32_t b = 0; b < step.batch; ++b) {
    const int64_t len = seq_len(step.slot[b]);
    if (step.q_len(b) == 0) continue;
    if (const int64_t first = step.position[step.q_start[b]]; first != len) {
      fail("row ", step.slot[b], " of the cache holds ", len,
           " tokens, but the step begins at position ", first);
    }
    if (step.tentative) {
      fail_as(ErrorKind::kUnsupported,
              "a recurrent state cannot step back: no tentative steps, so no drafts");
    }
  }
}

void FixedStateLayer::reserve(const Step& step) {
  check(step);
  rows_before_ = rows_.size();
  size_t rows = rows_.size();
  for (int32_t b = 0; b < step.batch; ++b)
    rows = std::max(rows, static_cast<size_t>(step.slot[b]) + 1);
  rows_.resize(rows);
  try {
    for (Held& row : rows_)
      if (!row.now) row.now = take_block();  // a row may exist before its first token
    for (int32_t b = 0; b < step.batch; ++b)
      if (step.q_len(b) > 0) make_ready(rows_[static_cast<size_t>(step.slot[b])]);
  } catch (...) {
    cancel(step);
    throw;
  }
}

// Zeros for a row without tokens, and room beside its state that nobody else has.
void FixedStateLayer::make_ready(Held& row) {
  if (row.len == 0) {
    if (row.now.use_count() > 1) row.now = take_block();
    std::memset(row.now->data(), 0, row.now->size());
    row.now->mark_dirty();
  }
  if (!row.other || row.other.use_count() > 1) row.other = take_block();
  row.other->mark_dirty();
}

BlockPtr FixedStateLayer::take_block() {
  return larder::take_block(spare_, *source_, static_cast<size_t>(floats_) * sizeof(float));
}

StateLayer::Row FixedStateLayer::row(const Step& step, int32_t b) {
  const Held& row = at(step.slot[b]);
  return {floats(row.now, 0), floats(row.now, conv_floats_), floats(row.other, 0),
          floats(row.other, conv_floats_)};
}

void FixedStateLayer::commit(const Step& step) {
  for (int32_t b = 0; b < step.batch; ++b) {
    if (step.q_len(b) == 0) continue;
    Held& row = rows_[static_cast<size_t>(step.slot[b])];
    std::swap(row.now, row.other);
    row.len += step.q_len(b);
  }
}

void FixedStateLayer::accept(const Step& step, std::span<const int32_t> /*count*/) {
  LARDER_ASSERT(step.total_q == 0);  // reserve() lets no other tentative step through
}

void FixedStateLayer::cancel(const Step& step) noexcept {
  for (int32_t b = 0; b < step.batch; ++b) {
    const auto slot = static_cast<size_t>(step.slot[b]);
    if (slot >= rows_.size() || step.q_len(b) == 0) continue;
    Held& row = rows_[slot];
    const int64_t first = step.position[step.q_start[b]];
    if (row.len == first) continue;
    std::swap(row.now, row.other);
    row.len = first;
  }
  if (rows_.size() > rows_before_) rows_.resize(rows_before_);
}

void FixedStateLayer::retire(BlockPtr& block) noexcept {
  if (block && block.use_count() == 1 && spare_.size() < spare_.capacity())
    spare_.push_back(std::move(block));
  block = BlockPtr();
}

std::unique_ptr<Change> FixedStateLayer::select_rows(std::span<const int32_t> source) {
  if (rows_.empty()) return prepared([]() noexcept {});  // never written: nothing to move
  for (const int32_t row : source) check_row(row, batch());
  std::vector<Held> selected(source.size());
  spare_.reserve(2 * std::max(rows_.size(), source.size()));
  std::vector<int32_t> from(source.begin(), source.end());
  return prepared(
      [this, selected = std::move(selected), from = std::move(from)]() mutable noexcept {
        for (size_t i = 0; i < from.size(); ++i) {
          Held& old = rows_[static_cast<size_t>(from[i])];
          // The room beside the state goes to the first of the rows that come from it.
          selected[i] = {old.now, std::move(old.other), old.len};
        }
        std::swap(rows_, selected);
        for (Held& old : selected) {
          retire(old.now);
          retire(old.other);
        }
      });
}

std::unique_ptr<Change> FixedStateLayer::crop(std::span<const int64_t> len) {
  std::vector<size_t> emptied;
  for (size_t r = 0; r < std::min(len.size(), rows_.size()); ++r) {
    if (len[r] >= rows_[r].len) continue;
    if (len[r] > 0) {
      fail_as(ErrorKind::kUnsupported, "row ", r, " has taken ", rows_[r].len,
              " tokens into a recurrent state, which cannot go back to ", len[r],
              "; only to 0, or stay");
    }
    emptied.push_back(r);
  }
  return prepared([this, emptied = std::move(emptied)]() noexcept {
    for (const size_t r : emptied) rows_[r].len = 0;
  });
}

namespace {

[[noreturn]] void refuse_shift() {
  fail_as(ErrorKind::kUnsupported,
          "a recurrent state cannot drop tokens: no context shift with state layers");
}

}  // namespace

std::unique_ptr<Change> FixedStateLayer::shift(int32_t /*row*/, const ContextShift& /*shift*/) {
  refuse_shift();
}

void FixedStateLayer::check_can_shift(int64_t /*len*/, const ContextShift& /*shift*/) const {
  refuse_shift();
}

void FixedStateLayer::reset() noexcept {
  rows_.clear();
  spare_.clear();
}

std::unique_ptr<CacheLayer> FixedStateLayer::fork() const {
  auto forked = std::make_unique<FixedStateLayer>(spec_, source_);
  for (const Held& row : rows_) forked->rows_.push_back({row.now, {}, row.len});
  return forked;
}

void FixedStateLayer::for_each_block(FunctionRef<void(CacheBlock&)> body) const {
  for (const Held& row : rows_)
    for (const BlockPtr& block : {row.now, row.other})
      if (block) body(*block);
  for (const BlockPtr& block : spare_) body(*block);
}

std::string FixedStateLayer::format() const {
  return str("state f32, convolution ", spec_.conv_channels, " x ", spec_.conv_kernel, ", state ",
             spec_.state_size);
}

RowImage FixedStateLayer::save(int32_t row_index, Allocator& allocator) const {
  RowImage image{seq_len(row_index), {}};
  if (image.seq_len == 0) return image;
  const auto copy = [&](const char* name, const Shape& shape, const float* from) {
    Tensor tensor(allocator, shape, DType::kF32, "export");
    const auto bytes = static_cast<size_t>(tensor.view().byte_size());
    if (bytes > 0) std::memcpy(tensor.view().data, from, bytes);
    image.tensors.push_back({name, std::move(tensor)});
  };
  copy("conv", {spec_.conv_channels, spec_.conv_kernel}, conv_of(row_index));
  copy("state", {spec_.state_size}, state_of(row_index));
  return image;
}

std::unique_ptr<Change> FixedStateLayer::load(std::span<const RowImageView> rows) {
  const auto fill = [this](const BlockPtr& block, int64_t offset, const TensorView& from) {
    if (from.count() > 0)
      std::memcpy(floats(block, offset), from.data, static_cast<size_t>(from.byte_size()));
  };
  std::vector<Held> loaded;
  for (const RowImageView& row : rows) {
    check_image(row, {"conv", "state"}, -1);
    Held held{source_->make(static_cast<size_t>(floats_) * sizeof(float)), {}, row.seq_len};
    if (row.seq_len > 0) {
      const Shape conv{spec_.conv_channels, spec_.conv_kernel}, state{spec_.state_size};
      fill(held.now, 0, image_tensor(row, "conv", DType::kF32, conv));
      fill(held.now, conv_floats_, image_tensor(row, "state", DType::kF32, state));
    }
    loaded.push_back(std::move(held));
  }
  return prepared([this, loaded = std::move(loaded)]() mutable noexcept {
    std::swap(rows_, loaded);
    spare_.clear();
  });
}

std::unique_ptr<CacheLayer> make_state_layer(const LayerSpec& spec, Allocator& allocator) {
  return std::make_unique<FixedStateLayer>(spec, std::make_shared<MemoryBlocks>(allocator));
}

}  // namespace larder
