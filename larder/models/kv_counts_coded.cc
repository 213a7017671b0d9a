// The counts of a LarderQuantizedLayer.
#include <algorithm>
#include <utility>

#include "larder/cache/coded_block.h"
#include "larder/models/kv_counts.h"

namespace larder {
namespace {

constexpr int64_t kBlock = kCodedBlock;

class CodedCounts final : public LayerCounts {
 public:
  explicit CodedCounts(const CodedCut& layer) : layer_(layer) {}

  void commit(std::span<const RowStep> step) override {
    for (const RowStep& each : step) {
      Row& row = row_at(rows_, each);
      const int64_t old_len = row.len;
      row.len += each.count;
      for (; row.prepared > 0; --row.prepared) {
        if (row.coded_end() == old_len / kBlock && old_len % kBlock != 0)
          row.cut = true;
        else
          give(layer_.exact_bytes);
        ++row.coded, --row.exact;
      }
    }
  }
  int64_t step_limit(int32_t row) const override {
    const Row none,
        &at = static_cast<size_t>(row) < rows_.size() ? rows_[static_cast<size_t>(row)] : none;
    return kBlock * (at.coded_end() + 1) + layer_.residual_length - at.len;
  }

 private:
  struct Row {
    int64_t coded = 0, exact = 0, prepared = 0;  // blocks
    int64_t first_block = 0, len = 0;
    bool cut = false;  // keeps the exact block that a cancelled step would need again

    int64_t coded_end() const { return first_block + coded; }
  };

  void reserve_blocks(std::span<const RowStep> step) override {
    for (const RowStep& each : step) {
      Row& row = row_at(rows_, each);
      drop_behind_window(row);
      if (std::exchange(row.cut, false)) give(layer_.exact_bytes);
      if (each.count == 0) continue;
      const int64_t len = row.len + each.count;
      const int64_t need = ceil_div(len, kBlock) - row.coded_end();
      take(layer_.exact_bytes, std::max<int64_t>(0, need - row.exact));
      row.exact = std::max(row.exact, need);
      const int64_t due = std::max<int64_t>(0, len - layer_.residual_length) / kBlock;
      row.prepared = std::max<int64_t>(0, due - row.coded_end());
      take(layer_.coded_bytes, row.prepared);
    }
  }

  void drop_behind_window(Row& row) {
    if (layer_.window == 0) return;
    const int64_t needed = row.len - layer_.window + 1 - layer_.rollback;
    for (; kBlock * (row.first_block + 1) <= needed && row.coded + row.exact > 0;
         ++row.first_block) {
      give(row.coded > 0 ? layer_.coded_bytes : layer_.exact_bytes);
      --(row.coded > 0 ? row.coded : row.exact);
    }
  }

  const CodedCut layer_;
  std::vector<Row> rows_;
};

}  // namespace

std::unique_ptr<LayerCounts> count_coded(const CodedCut& cut) {
  return std::make_unique<CodedCounts>(cut);
}

}  // namespace larder
