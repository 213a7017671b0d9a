// What layers that keep their rows in a vector do with whole rows.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "larder/cache/layer.h"

namespace larder {

// Refuses a number that is no row of a layer of `batch` rows.
void check_row(int64_t row, int32_t batch);

// Prepares rows[i] := old rows[source[i]]; a row that keeps its place is not copied. apply() calls
// retire(row) for each row that goes, then done(). Neither may throw. A layer without rows was
// never written and stays so. Borrows `rows`.
template <class Row, class Retire, class Done>
std::unique_ptr<Change> move_rows(std::vector<Row>& rows, std::span<const int32_t> source,
                                  Retire retire, Done done) {
  if (rows.empty()) return prepared([]() noexcept {});
  for (const int32_t row : source) check_row(row, static_cast<int32_t>(rows.size()));
  std::vector<std::pair<size_t, Row>> moved;
  for (size_t i = 0; i < source.size(); ++i) {
    const auto row = static_cast<size_t>(source[i]);
    if (row != i) moved.emplace_back(i, rows[row]);
  }
  rows.reserve(source.size());
  return prepared(
      [&rows, retire, done, batch = source.size(), moved = std::move(moved)]() mutable noexcept {
        for (size_t i = batch; i < rows.size(); ++i) retire(rows[i]);
        rows.resize(batch);
        for (auto& [index, row] : moved) {
          std::swap(rows[index], row);
          retire(row);
        }
        done();
      });
}

// Prepares that the layer has these rows and no others. Borrows `rows`.
template <class Row>
std::unique_ptr<Change> replace_rows(std::vector<Row>& rows, std::vector<Row> others) {
  return prepared([&rows, others = std::move(others)]() mutable noexcept {
    std::swap(rows, others);
    others.clear();
  });
}

// A block of `bytes` bytes: a spare one, or new.
BlockPtr take_block(std::vector<BlockPtr>& spare, BlockSource& source, size_t bytes);

// Lets go of a row's blocks. Those that nobody else has go to `spare`, as far as it has capacity.
void retire_blocks(std::vector<BlockPtr>& blocks, std::vector<BlockPtr>& spare) noexcept;

// What the row keeps, oldest token first: [num_kv_heads, kept, head_dim] of the layer's dtype.
struct TokenTensors {
  Tensor k, v;
};
TokenTensors read_tokens(const KVLayer& layer, int32_t row, Allocator& allocator,
                         std::string_view tag);

// The image of a row that is its tokens and nothing more: "k" and "v", as read_tokens() gives them.
RowImage save_tokens(const KVLayer& layer, int32_t row, Allocator& allocator);

}  // namespace larder
