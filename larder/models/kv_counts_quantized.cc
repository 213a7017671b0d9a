// The counts of a QuantizedLayer.
#include <algorithm>
#include <utility>

#include "larder/cache/quantized_layer.h"
#include "larder/models/kv_counts.h"

namespace larder {
namespace {

class QuantizedCounts final : public LayerCounts {
 public:
  explicit QuantizedCounts(const QuantLayout& layout) : layout_(layout) {}

  void commit(std::span<const RowStep> step) override {
    for (const RowStep& each : step) {
      Row& row = row_at(rows_, each);
      row.exact_len += each.count;
      if (const int64_t tokens = std::exchange(row.flushes_to, 0); tokens > 0) flush(row, tokens);
    }
  }
  int64_t flush_scratch() const override { return scratch_; }

 private:
  struct Row {
    int64_t codes = 0, flat = 0, quantized = 0;  // blocks, bytes, tokens
    int64_t exact = 0, exact_begin = 0, exact_len = 0;
    int64_t flushes_to = 0;  // tokens that are codes after the step; 0: as before
  };

  int64_t exact_bytes() const { return 2 * layout_.exact_side_bytes; }

  void reserve_blocks(std::span<const RowStep> step) override {
    scratch_ = 0;
    for (const RowStep& each : step) {
      Row& row = row_at(rows_, each);
      const int64_t need =
          ceil_div(row.exact_begin + row.exact_len + each.count, QuantLayout::kExactBlock);
      take(exact_bytes(), std::max<int64_t>(0, need - row.exact));
      row.exact = std::max(row.exact, need);
      row.flushes_to = flushed(row, each.count);
      if (row.flushes_to == 0) continue;
      take(layout_.block_bytes, layout_.blocks_for(row.flushes_to) - row.codes);
      if (layout_.has_flat()) take(layout_.flat_bytes(row.flushes_to));
      scratch_ = std::max(scratch_, layout_.scratch_bytes(row.quantized, row.flushes_to));
    }
  }

  int64_t flushed(const Row& row, int64_t n) const {
    const int64_t len = row.quantized + row.exact_len, most = layout_.residual_length;
    const bool due = len == 0 || (row.exact_len > 0 && row.exact_len + 1 >= most) ||
                     row.exact_len + n > std::max<int64_t>(most, QuantLayout::kExactBlock);
    const int64_t divides = (len + n) / layout_.unit * layout_.unit;
    return n > 0 && due && divides > row.quantized ? divides : 0;
  }

  void flush(Row& row, int64_t tokens) {
    row.codes = layout_.blocks_for(tokens);
    give(std::exchange(row.flat, layout_.has_flat() ? layout_.flat_bytes(tokens) : 0));
    const int64_t gone = tokens - std::exchange(row.quantized, tokens);
    row.exact_begin += gone, row.exact_len -= gone;
    const int64_t blocks = row.exact_begin / QuantLayout::kExactBlock;
    row.exact_begin = row.exact_len == 0 ? 0 : row.exact_begin % QuantLayout::kExactBlock;
    const int64_t kept = std::min(
        row.exact - blocks, ceil_div(row.exact_begin + row.exact_len, QuantLayout::kExactBlock));
    give(exact_bytes(), row.exact - kept);
    row.exact = kept;
  }

  const QuantLayout layout_;
  std::vector<Row> rows_;
  int64_t scratch_ = 0;
};

}  // namespace

std::unique_ptr<LayerCounts> count_quantized(const CacheLayer& layer) {
  const auto* quantized = dynamic_cast<const QuantizedLayer*>(&layer);
  return quantized ? std::make_unique<QuantizedCounts>(quantized->layout()) : nullptr;
}

}  // namespace larder
