#include "larder/cache/quantized_layer.h"

#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/stored_float.h"
#include "larder/tensor/kernels.h"

namespace larder {

QuantizedLayer::QuantizedLayer(const LayerSpec& spec, DType dtype, const QuantSettings& settings,
                               std::shared_ptr<BlockSource> blocks,
                               std::shared_ptr<FlushScratch> scratch)
    : spec_(spec),
      settings_(settings),
      layout_(settings, spec, dtype),
      source_(std::move(blocks)),
      scratch_(std::move(scratch)) {}

QuantizedLayer::~QuantizedLayer() { finish_step(); }

void QuantizedLayer::check(const Step& step) const {
  for (int32_t b = 0; b < step.batch; ++b) {
    const int32_t slot = step.slot[b], n = step.q_len(b);
    const int64_t len = seq_len(slot);
    if (n > 0 && step.position[step.q_start[b]] != len) {
      fail("row ", slot, " of the cache holds ", len, " tokens, but the step begins at position ",
           step.position[step.q_start[b]]);
    }
    if (len + n > INT32_MAX)
      fail_as(ErrorKind::kNoRoom, "row ", slot, " would pass ", INT32_MAX, " tokens");
    if (step.tentative && n > tentative_limit(slot)) {
      fail_as(ErrorKind::kUnsupported, "a tentative step of ", n, " tokens on row ", slot,
              ", which is quantized after ", tentative_limit(slot));
    }
  }
}

int64_t QuantizedLayer::flushes_to(const QuantRow& row, int64_t n) const {
  const int64_t residual = row.exact_len, most = layout_.residual_length;
  const bool due = row.len() == 0 || (residual > 0 && residual + 1 >= most) ||
                   residual + n > std::max<int64_t>(most, QuantLayout::kExactBlock);
  const int64_t divides = (row.len() + n) / layout_.unit * layout_.unit;
  return n > 0 && due && divides > row.quantized ? divides : 0;
}

// The token, counted from 1, that flushes when tokens are fed one by one.
int64_t QuantizedLayer::first_flush(const QuantRow& row) const {
  const int64_t next = (row.quantized / layout_.unit + 1) * layout_.unit - row.len();
  if (row.len() == 0 && layout_.unit == 1) return 1;
  const int64_t residual = row.exact_len;
  return std::max({next, layout_.residual_length - residual, int64_t{residual == 0 ? 2 : 1}});
}

int64_t QuantizedLayer::tentative_limit(int32_t row) const {
  return first_flush(row < batch() ? row_at(row) : QuantRow());
}

void QuantizedLayer::reserve(const Step& step) {
  check(step);
  int32_t rows = batch();
  for (int32_t b = 0; b < step.batch; ++b) rows = std::max(rows, step.slot[b] + 1);
  rows_before_ = rows_.size();
  finish_step();
  rows_.resize(static_cast<size_t>(rows));
  try {
    flushes_.resize(static_cast<size_t>(step.batch));
    size_t code_blocks = 1, exact_blocks = 1;
    for (int32_t b = 0; b < step.batch; ++b) {
      reserve_row(step, b);
      const QuantRow& row = rows_[static_cast<size_t>(step.slot[b])];
      code_blocks = std::max(code_blocks, row.codes.size());
      exact_blocks = std::max(exact_blocks, row.exact.size());
    }
    arrays_.resize(static_cast<size_t>(step.batch), code_blocks, exact_blocks);
  } catch (...) {
    cancel(step);
    throw;
  }
}

// Exact blocks of its own for the new tokens, and what the flush at their end writes into.
void QuantizedLayer::reserve_row(const Step& step, int32_t b) {
  QuantRow& row = rows_[static_cast<size_t>(step.slot[b])];
  const int64_t n = step.q_len(b);
  if (n == 0) return;
  const auto bytes = static_cast<size_t>(2 * layout_.exact_side_bytes);
  const int64_t end = row.exact_begin + row.exact_len;
  const auto at = static_cast<size_t>(end / QuantLayout::kExactBlock);
  if (at < row.exact.size() && row.exact[at].use_count() > 1) {
    BlockPtr copy = source_->make(bytes);
    source_->copy(*copy, *row.exact[at], 0, bytes);
    row.exact[at] = std::move(copy);
  }
  const auto need = static_cast<size_t>((end + n - 1) / QuantLayout::kExactBlock + 1);
  row.exact.reserve(need);
  while (row.exact.size() < need) row.exact.push_back(source_->make(bytes));
  for (size_t i = at; i < need; ++i) row.exact[i]->mark_dirty();

  int64_t tokens = flushes_to(row, n);
  if (step.tentative)
    tokens = n == first_flush(row) ? (row.len() + n) / layout_.unit * layout_.unit : 0;
  if (tokens == 0) return;
  flushes_[static_cast<size_t>(b)] = QuantFlush::prepare(layout_, row, tokens, *source_);
  if (!holds_scratch_) scratch_->hold();
  holds_scratch_ = true;
  scratch_->grow(static_cast<size_t>(layout_.scratch_bytes(row.quantized, tokens)));
}

void QuantizedLayer::finish_step() noexcept {
  flushes_.clear();
  if (holds_scratch_) scratch_->release();
  holds_scratch_ = false;
}

KVView QuantizedLayer::append(const Exec& exec, const TensorView& k, const TensorView& v,
                              const Step& step) {
  write(exec, k, 0, step);
  write(exec, v, 1, step);
  return view_of(step);
}

void QuantizedLayer::write(const Exec& exec, const TensorView& x, int which,
                           const Step& step) const {
  const int64_t token_floats = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  for (int32_t b = 0; b < step.batch; ++b) {
    const QuantRow& row = row_at(step.slot[b]);
    for (int32_t i = 0; i < step.q_len(b); ++i) {
      const float* from = x.as<float>() + (step.q_start[b] + i) * token_floats;
      for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
        exec.kernels.store(row.exact_at(layout_, which, row.exact_len + i, head), layout_.dtype,
                           from + int64_t{head} * spec_.head_dim, spec_.head_dim);
      }
    }
  }
}

void QuantizedLayer::commit(const Step& step) {
  if (step.tentative) return;
  for (int32_t b = 0; b < step.batch; ++b) {
    QuantRow& row = rows_[static_cast<size_t>(step.slot[b])];
    row.exact_len += step.q_len(b);
    QuantFlush& flush = flushes_[static_cast<size_t>(b)];
    if (flush.quantized > 0) flush.run(layout_, row, scratch_->data());
  }
  finish_step();
}

void QuantizedLayer::accept(const Step& step, std::span<const int32_t> count) {
  for (int32_t b = 0; b < step.batch; ++b) {
    const int32_t taken = count[static_cast<size_t>(b)];
    LARDER_ASSERT(taken >= 0 && taken <= step.q_len(b));
    QuantRow& row = rows_[static_cast<size_t>(step.slot[b])];
    row.exact_len += taken;
    QuantFlush& flush = flushes_[static_cast<size_t>(b)];
    // A prepared flush is that of the step's last token.
    if (flush.quantized > 0 && taken == step.q_len(b)) flush.run(layout_, row, scratch_->data());
    row.trim(layout_);
  }
  finish_step();
}

void QuantizedLayer::cancel(const Step& step) noexcept {
  finish_step();
  for (int32_t b = 0; b < step.batch; ++b) {
    const auto slot = static_cast<size_t>(step.slot[b]);
    if (slot >= rows_.size()) continue;
    const int64_t len = step.q_len(b) > 0 ? step.position[step.q_start[b]] : rows_[slot].len();
    rows_[slot].crop(layout_, len);
  }
  if (rows_.size() > rows_before_) rows_.resize(rows_before_);
}

void QuantizedLayer::read(int32_t index, const TensorView& k, const TensorView& v) const {
  LARDER_ASSERT(k.dtype == dtype() && v.dtype == dtype() && k.is_contiguous() && v.is_contiguous());
  if (index >= batch()) return;
  const QuantRow& row = row_at(index);
  const auto size = static_cast<int64_t>(dtype_size(dtype()));
  std::vector<float> values(static_cast<size_t>(spec_.head_dim));
  for (int which = 0; which < 2; ++which) {
    std::byte* to = (which == 0 ? k : v).bytes();
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
      for (int64_t token = 0; token < row.len(); ++token) {
        row.load(layout_, which, token, head, values.data());
        for (const float value : values) {
          store_stored(to, dtype(), value);
          to += size;
        }
      }
    }
  }
}

}  // namespace larder
