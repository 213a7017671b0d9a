#include "larder/cache/larder_quantized_layer.h"

#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/check_step.h"
#include "larder/cache/stored_float.h"
#include "larder/cache/window.h"
#include "larder/tensor/hadamard.h"
#include "larder/tensor/kernels.h"

namespace larder {
namespace {

constexpr int64_t kBlock = kCodedBlock;

}  // namespace

LarderQuantizedLayer::LarderQuantizedLayer(const LayerSpec& spec,
                                           const LarderQuantizedOptions& options,
                                           std::shared_ptr<BlockSource> blocks)
    : spec_(spec),
      options_(options),
      coded_(spec, options.dtype, options.key, options.value),
      source_(std::move(blocks)),
      token_bytes_(checked_mul(spec.head_dim, static_cast<int64_t>(dtype_size(options.dtype)))),
      head_bytes_(checked_mul(token_bytes_, kBlock)),
      side_bytes_(checked_mul(head_bytes_, spec.num_kv_heads)) {
  checked_mul(side_bytes_, 2);
  LARDER_ASSERT(spec.head_dim <= kMostHeadDim);
}

int64_t LarderQuantizedLayer::seq_len(int32_t row) const {
  return row < batch() ? rows_[static_cast<size_t>(row)].len : 0;
}

int64_t LarderQuantizedLayer::kept_len(int32_t row) const {
  return row < batch() ? rows_[static_cast<size_t>(row)].len - rows_[static_cast<size_t>(row)].first
                       : 0;
}

// Blocks of a row of `len` tokens that the rule wants as codes.
int64_t LarderQuantizedLayer::blocks_due(int64_t len) const {
  return std::max<int64_t>(0, len - options_.residual_length) / kBlock;
}

int64_t LarderQuantizedLayer::blocks_of(int64_t len, int64_t step) const {
  return most_blocks({spec_.window, options_.rollback, kBlock}, len, step);
}

int64_t LarderQuantizedLayer::tentative_limit(int32_t row) const {
  const int64_t coded = row < batch() ? rows_[static_cast<size_t>(row)].coded_end() : int64_t{0};
  return kBlock * (coded + 1) + options_.residual_length - seq_len(row);
}

void LarderQuantizedLayer::check(const Step& step) const {
  check_step(*this, step);
  for (int32_t b = 0; step.tentative && b < step.batch; ++b) {
    if (step.q_len(b) > tentative_limit(step.slot[b])) {
      fail_as(ErrorKind::kUnsupported, "a tentative step of ", step.q_len(b), " tokens in row ",
              step.slot[b], ", which takes ", tentative_limit(step.slot[b]),
              " before it quantizes a block");
    }
  }
}

void LarderQuantizedLayer::reserve(const Step& step) {
  check(step);
  int64_t most_coded = 1, most_exact = 1;
  int32_t rows = batch();
  for (int32_t b = 0; b < step.batch; ++b) {
    rows = std::max(rows, step.slot[b] + 1);
    const int64_t coded =
        step.slot[b] < batch() ? rows_[static_cast<size_t>(step.slot[b])].coded_end() : 0;
    most_coded = std::max(most_coded, coded);
    most_exact =
        std::max(most_exact, ceil_div(seq_len(step.slot[b]) + step.q_len(b), kBlock) - coded);
  }
  const auto n = static_cast<size_t>(step.batch);
  for (const size_t part : {0, 1}) {
    table_[part].reserve(n * static_cast<size_t>(part == 0 ? most_coded : most_exact));
    first_position_[part].assign(n, 0);
    begin_[part].assign(n, 0);
    len_[part].assign(n, 0);
  }
  rows_before_ = rows_.size();
  rows_.resize(static_cast<size_t>(rows));
  try {
    for (int32_t b = 0; b < step.batch; ++b) {
      Row& row = rows_[static_cast<size_t>(step.slot[b])];
      drop_behind_window(row);
      make_room(row, step.q_len(b));
    }
  } catch (...) {
    cancel(step);
    throw;
  }
}

void LarderQuantizedLayer::drop_behind_window(Row& row) const {
  const int64_t needed =
      std::max<int64_t>(0, window_start(spec_.window, row.len) - options_.rollback);
  while (kBlock * (row.first_block + 1) <= needed) {
    std::vector<BlockPtr>& list = row.coded.empty() ? row.exact : row.coded;
    if (list.empty()) break;
    list.erase(list.begin());
    ++row.first_block;
    row.first = std::max(row.first, kBlock * row.first_block);
  }
}

// Blocks for `count` new tokens, of the row's own, and for what they will push out of the window.
void LarderQuantizedLayer::make_room(Row& row, int64_t count) {
  row.cut.reset();
  if (count == 0) return;
  const auto at = static_cast<size_t>(row.len / kBlock - row.coded_end());
  if (at < row.exact.size() && row.exact[at].use_count() > 1) {
    BlockPtr copy = make_exact();
    const auto used = static_cast<size_t>(row.len % kBlock * token_bytes_);
    for (int64_t head = 0; head < 2 * int64_t{spec_.num_kv_heads}; ++head)
      source_->copy(*copy, *row.exact[at], static_cast<size_t>(head * head_bytes_), used);
    row.exact[at] = std::move(copy);
  }
  const int64_t len = row.len + count;
  const auto need = static_cast<size_t>(ceil_div(len, kBlock) - row.coded_end());
  row.exact.reserve(need);
  while (row.exact.size() < need) row.exact.push_back(make_exact());
  for (size_t i = at; i < need; ++i) row.exact[i]->mark_dirty();
  const auto due = static_cast<size_t>(std::max<int64_t>(0, blocks_due(len) - row.coded_end()));
  if (due == 0) return;
  row.coded.reserve(row.coded.size() + due);
  row.prepared.reserve(due);
  while (row.prepared.size() < due) row.prepared.push_back(make_coded());
}

BlockPtr LarderQuantizedLayer::make_exact() const {
  return source_->make(static_cast<size_t>(2 * side_bytes_));
}

BlockPtr LarderQuantizedLayer::make_coded() const {
  return source_->make(static_cast<size_t>(coded_.bytes()));
}

std::byte* LarderQuantizedLayer::slot(const CacheBlock& exact, Part part, int32_t head,
                                      int64_t slot) const {
  return exact.data() + (part == Part::kKey ? 0 : side_bytes_) + head * head_bytes_ +
         slot * token_bytes_;
}

KVView LarderQuantizedLayer::append(const Exec& exec, const TensorView& k, const TensorView& v,
                                    const Step& step) {
  write(exec, Part::kKey, k, step);
  write(exec, Part::kValue, v, step);
  return view_of(step);
}

void LarderQuantizedLayer::write(const Exec& exec, Part part, const TensorView& x,
                                 const Step& step) const {
  const int64_t dim = spec_.head_dim;
  const bool turns = part == Part::kKey && options_.hadamard;
  float turned[kMostHeadDim];
  for (int32_t b = 0; b < step.batch; ++b) {
    const Row& row = rows_[static_cast<size_t>(step.slot[b])];
    for (int32_t i = 0; i < step.q_len(b); ++i) {
      const int64_t position = row.len + i;
      const CacheBlock& block =
          *row.exact[static_cast<size_t>(position / kBlock - row.coded_end())];
      for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
        const float* from =
            x.as<float>() + (int64_t{step.q_start[b] + i} * spec_.num_kv_heads + head) * dim;
        if (turns) {
          std::copy_n(from, dim, turned);
          larder::hadamard(turned, 1, dim);
          from = turned;
        }
        exec.kernels.store(slot(block, part, head, position % kBlock), options_.dtype, from, dim);
      }
    }
  }
}

KVView LarderQuantizedLayer::view_of(const Step& step) {
  int64_t stride[2] = {1, 1};
  for (int32_t b = 0; b < step.batch; ++b) {
    const Row& row = rows_[static_cast<size_t>(step.slot[b])];
    const auto i = static_cast<size_t>(b);
    const int64_t seam = kBlock * row.coded_end(), end = row.len + step.q_len(b);
    first_position_[0][i] = row.first;
    begin_[0][i] = static_cast<int32_t>(row.first - kBlock * row.first_block);
    len_[0][i] = static_cast<int32_t>(std::max<int64_t>(0, seam - row.first));
    const int64_t exact_first = std::max(row.first, seam);
    first_position_[1][i] = exact_first;
    begin_[1][i] = static_cast<int32_t>(exact_first - seam);
    len_[1][i] = static_cast<int32_t>(end - exact_first);
    stride[0] = std::max(stride[0], static_cast<int64_t>(row.coded.size()));
    stride[1] = std::max(stride[1], static_cast<int64_t>(row.exact.size()));
  }
  for (const size_t part : {0, 1}) {
    table_[part].assign(static_cast<size_t>(step.batch * stride[part]), 0);
    for (int32_t b = 0; b < step.batch; ++b) {
      const Row& row = rows_[static_cast<size_t>(step.slot[b])];
      const std::vector<BlockPtr>& blocks = part == 0 ? row.coded : row.exact;
      for (size_t i = 0; i < blocks.size(); ++i)
        table_[part][static_cast<size_t>(b * stride[part]) + i] =
            reinterpret_cast<intptr_t>(blocks[i]->data());
    }
  }
  KVView view{2, spec_.num_kv_heads, spec_.head_dim, {}, options_.hadamard};
  for (const size_t part : {0, 1}) {
    view.segment[part] = segment_of(part == 0);
    view.segment[part].table_stride = static_cast<int32_t>(stride[part]);
  }
  return view;
}

KVSegment LarderQuantizedLayer::segment_of(bool coded) {
  const size_t part = coded ? 0 : 1;
  KVSegment segment;
  if (coded) {
    segment.k = coded_.k.side();
    segment.v = coded_.v.side();
  } else {
    segment.k = {0, options_.dtype, head_bytes_, token_bytes_, {}};
    segment.v = {
        static_cast<uintptr_t>(side_bytes_), options_.dtype, head_bytes_, token_bytes_, {}};
  }
  segment.block_table = table_[part].data();
  segment.block_size = kCodedBlock;
  segment.first_position = first_position_[part].data();
  segment.begin = begin_[part].data();
  segment.len = len_[part].data();
  for (const int32_t len : len_[part]) segment.max_len = std::max(segment.max_len, len);
  return segment;
}

void LarderQuantizedLayer::commit(const Step& step) {
  if (step.tentative) return;
  for (int32_t b = 0; b < step.batch; ++b)
    advance(rows_[static_cast<size_t>(step.slot[b])], step.q_len(b));
}

void LarderQuantizedLayer::accept(const Step& step, std::span<const int32_t> count) {
  for (int32_t b = 0; b < step.batch; ++b) {
    const int32_t taken = count[static_cast<size_t>(b)];
    LARDER_ASSERT(taken >= 0 && taken <= step.q_len(b));
    Row& row = rows_[static_cast<size_t>(step.slot[b])];
    advance(row, taken);
    trim(row);
  }
}

void LarderQuantizedLayer::advance(Row& row, int64_t count) {
  const int64_t old_len = row.len;
  row.len += count;
  while (!row.prepared.empty() && row.coded_end() < blocks_due(row.len)) {
    encode(*row.exact.front(), *row.prepared.back());
    if (row.coded_end() == old_len / kBlock && old_len % kBlock != 0) row.cut = row.exact.front();
    row.coded.push_back(std::move(row.prepared.back()));
    row.prepared.pop_back();
    row.exact.erase(row.exact.begin());
  }
  row.prepared.clear();
}

void LarderQuantizedLayer::cancel(const Step& step) noexcept {
  for (int32_t b = 0; b < step.batch; ++b) {
    const auto slot = static_cast<size_t>(step.slot[b]);
    if (slot >= rows_.size()) continue;
    if (step.q_len(b) > 0) step_back(rows_[slot], step.position[step.q_start[b]]);
  }
  if (rows_.size() > rows_before_) rows_.resize(rows_before_);
}

void LarderQuantizedLayer::step_back(Row& row, int64_t len) noexcept {
  row.len = len;
  row.prepared.clear();
  const bool into_codes = kBlock * row.coded_end() > len;
  while (!row.coded.empty() && kBlock * row.coded_end() > len) row.coded.pop_back();
  if (into_codes) {
    row.exact.clear();
    if (row.cut) row.exact.push_back(std::move(row.cut));  // it had room for more before
  }
  row.cut.reset();
  trim(row);
}

void LarderQuantizedLayer::trim(Row& row) const noexcept {
  const auto need =
      static_cast<size_t>(std::max<int64_t>(0, ceil_div(row.len, kBlock) - row.coded_end()));
  while (row.exact.size() > need) row.exact.pop_back();
}

void LarderQuantizedLayer::encode(const CacheBlock& exact, CacheBlock& coded) const {
  std::memset(coded.data(), 0, coded.size());  // padding, too: files hold blocks as they are
  for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
    coded_.k.encode({slot(exact, Part::kKey, head, 0), token_bytes_, options_.dtype}, head,
                    coded.data());
    coded_.v.encode({slot(exact, Part::kValue, head, 0), token_bytes_, options_.dtype}, head,
                    coded.data());
  }
}

// As stored: keys stay turned.
void LarderQuantizedLayer::thaw(const CacheBlock& coded, CacheBlock& exact) const {
  float x[kMostHeadDim];
  for (const Part part : {Part::kKey, Part::kValue}) {
    const CodedSide& side = part == Part::kKey ? coded_.k : coded_.v;
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
      for (int64_t i = 0; i < kBlock; ++i) {
        side.decode(coded.data(), head, i, x);
        for (int64_t d = 0; d < spec_.head_dim; ++d)
          store_stored(slot(exact, part, head, i) + d * (token_bytes_ / spec_.head_dim),
                       options_.dtype, x[d]);
      }
    }
  }
}

// One head of a token as it was fed, up to rounding: keys turned back.
void LarderQuantizedLayer::token_floats(const Row& row, int64_t position, int32_t head, Part part,
                                        float* out) const {
  const int64_t block = position / kBlock, within = position % kBlock;
  if (block < row.coded_end()) {
    const CodedSide& side = part == Part::kKey ? coded_.k : coded_.v;
    side.decode(row.coded[static_cast<size_t>(block - row.first_block)]->data(), head, within, out);
  } else {
    const std::byte* from =
        slot(*row.exact[static_cast<size_t>(block - row.coded_end())], part, head, within);
    for (int64_t d = 0; d < spec_.head_dim; ++d)
      out[d] = load_stored(from + d * (token_bytes_ / spec_.head_dim), options_.dtype);
  }
  if (part == Part::kKey && options_.hadamard) larder::hadamard(out, 1, spec_.head_dim);
}

void LarderQuantizedLayer::read(int32_t row_index, const TensorView& k, const TensorView& v) const {
  LARDER_ASSERT(k.dtype == options_.dtype && v.dtype == options_.dtype && k.is_contiguous() &&
                v.is_contiguous());
  float x[kMostHeadDim];
  const int64_t kept = kept_len(row_index);
  for (int64_t i = 0; i < kept; ++i) {
    const Row& row = rows_[static_cast<size_t>(row_index)];
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
      for (const Part part : {Part::kKey, Part::kValue}) {
        token_floats(row, row.first + i, head, part, x);
        std::byte* to = (part == Part::kKey ? k : v).bytes() + (head * kept + i) * token_bytes_;
        for (int64_t d = 0; d < spec_.head_dim; ++d)
          store_stored(to + d * (token_bytes_ / spec_.head_dim), options_.dtype, x[d]);
      }
    }
  }
}

}  // namespace larder
