#include "larder/cache/padded.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "larder/base/error.h"
#include "larder/cache/rows.h"

namespace larder {

PaddedCache::PaddedCache(Cache& cache, const Exec& exec, Allocator& allocator,
                         std::vector<int64_t> pads, PaddedSide side)
    : cache_(cache),
      exec_(exec),
      allocator_(allocator),
      side_(side),
      pads_(std::move(pads)),
      columns_(
          static_cast<size_t>(side == PaddedSide::kSelf ? cache.num_layers() : cache.num_cross()),
          0) {}

int64_t PaddedCache::pad(int32_t row) const {
  return static_cast<size_t>(row) < pads_.size() ? pads_[static_cast<size_t>(row)] : 0;
}

int64_t PaddedCache::get_seq_length(int32_t layer) const {
  return columns_[static_cast<size_t>(layer)];
}

int64_t PaddedCache::next_position(int32_t row, int32_t layer) const {
  return tokens(row, get_seq_length(layer));
}

int64_t PaddedCache::get_max_cache_shape(int32_t layer) const {
  const int64_t window = kv(layer).sliding_window();
  return window > 0 ? window : kv(layer).max_len();
}

std::pair<int64_t, int64_t> PaddedCache::get_mask_sizes(int64_t q_len, int32_t layer) const {
  const int64_t columns = get_seq_length(layer), window = kv(layer).sliding_window();
  const int64_t after = columns + q_len, capacity = get_max_cache_shape(layer);
  const bool fixed = kv(layer).max_len() >= 0;
  if (window == 0) return {fixed ? capacity : after, 0};
  if (fixed && after <= window) return {window, 0};
  const int64_t offset = std::max<int64_t>(columns - (window - 1), 0);
  return {after - offset, offset};
}

// What the reference's layer holds now: all columns, or its last window - 1 (of fixed size:
// window).
Columns PaddedCache::kept_columns(int32_t layer) const {
  const int64_t columns = get_seq_length(layer), window = kv(layer).sliding_window();
  const bool fixed = kv(layer).max_len() >= 0;
  const int64_t capacity = get_max_cache_shape(layer);
  if (window == 0) return {0, columns, fixed ? capacity : columns};
  const int64_t begin = std::max<int64_t>(columns - (fixed ? window : window - 1), 0);
  return {begin, columns, fixed ? window : columns - begin};
}

void PaddedCache::check_update(int32_t layer, const TensorView& keys, const TensorView& values,
                               std::optional<int64_t> cache_position) const {
  if (layer < 0 || static_cast<size_t>(layer) >= columns_.size())
    fail("layer ", layer, " of a cache of ", columns_.size(), " layers");
  if (side_ == PaddedSide::kCross && get_seq_length(layer) > 0)
    fail("cross layer ", layer, " has a source already; reset the cache first");
  if (keys.shape.rank() != 4 || !(keys.shape == values.shape)) {
    fail("keys ", keys.shape.text(), " and values ", values.shape.text(),
         " must both be [batch, heads, n, head_dim]");
  }
  if (batch_ >= 0 && keys.shape[0] != batch_) {
    fail("an update of batch ", keys.shape[0], " on a cache of batch ", batch_, "; reset it first");
  }
  if (!pads_.empty() && static_cast<int64_t>(pads_.size()) != keys.shape[0]) {
    fail("padding given for ", pads_.size(), " rows, the update has ", keys.shape[0]);
  }
  const int64_t columns = get_seq_length(layer), capacity = kv(layer).max_len();
  if (cache_position && *cache_position != columns) {
    fail("cache_position ", *cache_position, " where the next column is ", columns);
  }
  if (capacity >= 0 && columns + keys.shape[2] > capacity) {
    fail_as(ErrorKind::kNoRoom, "the cache is full: ", columns + keys.shape[2],
            " columns, but max_cache_len is ", capacity);
  }
}

namespace {

// The real tokens of a padded update, packed row after row.
struct PackedStep {
  std::vector<int32_t> q_start{0}, slot;
  std::vector<int64_t> position, column;  // column: where each token lies in the update
  Step step() const {
    return {static_cast<int32_t>(slot.size()),
            q_start.back(),
            q_start.data(),
            position.data(),
            slot.data(),
            false};
  }
};

// [total, heads, head_dim] f32 from [batch, heads, n, head_dim].
Tensor pack(Allocator& allocator, const TensorView& padded, const PackedStep& packed) {
  const int64_t heads = padded.shape[1], dim = padded.shape[3];
  Tensor out(allocator, {packed.q_start.back(), heads, dim}, DType::kF32, "scratch");
  for (size_t row = 0; row < packed.slot.size(); ++row) {
    const auto r = static_cast<int64_t>(row);
    for (int32_t i = packed.q_start[row]; i < packed.q_start[row + 1]; ++i) {
      const int64_t column = packed.column[static_cast<size_t>(i)];
      copy_into(out.view().slice(0, i, i + 1).reshape({heads, dim}),
                padded.slice(0, r, r + 1).slice(2, column, column + 1).reshape({heads, dim}));
    }
  }
  return out;
}

}  // namespace

KeyValues PaddedCache::update(int32_t layer, const TensorView& keys, const TensorView& values,
                              std::optional<int64_t> cache_position) {
  check_update(layer, keys, values, cache_position);
  const int64_t columns = get_seq_length(layer), n = keys.shape[2];
  PackedStep packed;
  for (int32_t row = 0; row < static_cast<int32_t>(keys.shape[0]); ++row) {
    for (int64_t column = std::max<int64_t>(pad(row) - columns, 0); column < n; ++column) {
      packed.position.push_back(tokens(row, columns + column));
      packed.column.push_back(column);
    }
    packed.slot.push_back(row);
    packed.q_start.push_back(static_cast<int32_t>(packed.position.size()));
  }
  const Tensor k = pack(allocator_, keys, packed), v = pack(allocator_, values, packed);
  const Step step = packed.step();
  KVLayer& target = kv(layer);
  std::optional<KeyValues> shown = old_and_new(layer, keys, values);
  target.reserve(step);
  target.append(exec_, k, v, step);
  target.commit(step);
  batch_ = keys.shape[0];
  columns_[static_cast<size_t>(layer)] += n;
  if (shown) return std::move(*shown);
  return export_columns(batch_, layer, kept_columns(layer));
}

// What an update of a sliding layer gives where that is not what the layer keeps afterwards: the
// old columns that the new ones may see, and the new ones. To be called before the update.
std::optional<KeyValues> PaddedCache::old_and_new(int32_t layer, const TensorView& keys,
                                                  const TensorView& values) const {
  const int64_t columns = get_seq_length(layer), n = keys.shape[2];
  const int64_t window = kv(layer).sliding_window();
  const bool fixed = kv(layer).max_len() >= 0;
  if (window == 0 || (fixed && columns + n <= window)) return std::nullopt;
  const int64_t begin = get_mask_sizes(n, layer).second;
  KeyValues shown = export_columns(keys.shape[0], layer, {begin, columns, columns - begin + n});
  const auto put = [&](const Tensor& to, const TensorView& from) {
    for (int32_t row = 0; row < static_cast<int32_t>(keys.shape[0]); ++row) {
      const int64_t padding = std::clamp<int64_t>(pad(row) - columns, 0, n);
      copy_into(
          to.view().slice(0, row, row + 1).slice(2, columns - begin + padding, columns - begin + n),
          from.slice(0, row, row + 1).slice(2, padding, n));
    }
  };
  put(shown.keys, keys);
  put(shown.values, values);
  return shown;
}

KeyValues PaddedCache::export_columns(int64_t batch, int32_t index, const Columns& columns) const {
  const KVLayer& layer = kv(index);
  const LayerSpec& spec = layer.spec();
  const Shape shape{batch, spec.num_kv_heads, columns.count, spec.head_dim};
  KeyValues out{Tensor(allocator_, shape, layer.dtype(), "export"),
                Tensor(allocator_, shape, layer.dtype(), "export")};
  for (const Tensor* side : {&out.keys, &out.values})
    std::memset(side->view().data, 0, static_cast<size_t>(side->view().byte_size()));
  for (int32_t row = 0; row < static_cast<int32_t>(batch); ++row) {
    const int64_t kept = layer.kept_len(row);
    const TokenTensors tokens = read_tokens(layer, row, allocator_, "export");
    // The columns of what is kept, and of it what is wanted.
    const int64_t first = pad(row) + layer.seq_len(row) - kept;
    const int64_t begin = std::max(first, columns.begin), end = std::min(first + kept, columns.end);
    if (begin >= end) continue;
    const auto put = [&](const Tensor& to, const Tensor& from) {
      copy_into(to.view()
                    .slice(0, row, row + 1)
                    .slice(2, begin - columns.begin, end - columns.begin)
                    .reshape({spec.num_kv_heads, end - begin, spec.head_dim}),
                from.view().slice(1, begin - first, end - first));
    };
    put(out.keys, tokens.k);
    put(out.values, tokens.v);
  }
  return out;
}

std::optional<KeyValues> PaddedCache::keys_values(int32_t index) const {
  if (batch_ < 0 || get_seq_length(index) == 0) return std::nullopt;
  const Columns columns = kept_columns(index);
  if (columns.count == 0) return std::nullopt;
  return export_columns(batch_, index, columns);
}

void PaddedCache::crop(int64_t max_length) {
  if (batch_ < 0) return;
  const int64_t longest = *std::ranges::max_element(columns_);
  const int64_t keep = max_length >= 0 ? max_length : std::max<int64_t>(longest + max_length, 0);
  if (keep >= longest) return;
  std::vector<int64_t> len(static_cast<size_t>(batch_));
  for (size_t row = 0; row < len.size(); ++row) len[row] = tokens(static_cast<int32_t>(row), keep);
  cache_.crop(len);
  for (int64_t& columns : columns_) columns = std::min(columns, keep);
  for (int64_t& pads : pads_) pads = std::min(pads, keep);
}

// The cross side follows the decoder's own, which moves the rows of all layers.
void PaddedCache::reset() {
  if (side_ == PaddedSide::kSelf) cache_.reset();
  std::ranges::fill(columns_, 0);
  pads_.clear();
  batch_ = -1;
}

void PaddedCache::select(std::span<const int32_t> source) {
  if (batch_ < 0) return;
  for (const int32_t row : source) {
    if (row < 0 || row >= batch_) fail("row ", row, " of a cache of batch ", batch_);
  }
  std::vector<int64_t> pads;
  pads.reserve(source.size());
  for (const int32_t row : source) pads.push_back(pad(row));
  if (side_ == PaddedSide::kSelf) cache_.select_rows(source);
  pads_ = std::move(pads);
  batch_ = static_cast<int64_t>(source.size());
}

void PaddedCache::reorder_cache(std::span<const int32_t> beam_idx) {
  if (batch_ >= 0 && static_cast<int64_t>(beam_idx.size()) != batch_) {
    fail("reorder_cache with ", beam_idx.size(), " indices on a cache of batch ", batch_);
  }
  select(beam_idx);
}

void PaddedCache::batch_select_indices(std::span<const int32_t> indices) { select(indices); }

void PaddedCache::batch_repeat_interleave(int64_t repeats) {
  if (repeats < 1) fail("batch_repeat_interleave by ", repeats, "; it must be at least 1");
  std::vector<int32_t> source;
  for (int64_t row = 0; row < std::max<int64_t>(batch_, 0); ++row) {
    source.insert(source.end(), static_cast<size_t>(repeats), static_cast<int32_t>(row));
  }
  select(source);
}

}  // namespace larder
