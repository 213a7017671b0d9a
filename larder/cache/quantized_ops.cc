// Operations on the rows of a quantized layer. Each acts on the codes and on the exact tokens.
#include <algorithm>

#include "larder/base/error.h"
#include "larder/cache/quantized_layer.h"
#include "larder/cache/rows.h"

namespace larder {

std::unique_ptr<Change> QuantizedLayer::select_rows(std::span<const int32_t> source) {
  return move_rows(
      rows_, source, [](QuantRow&) noexcept {}, []() noexcept {});
}

std::unique_ptr<Change> QuantizedLayer::crop(std::span<const int64_t> len) {
  std::vector<int64_t> kept(len.begin(), len.end());
  return prepared([this, kept = std::move(kept)]() noexcept {
    for (size_t r = 0; r < std::min(kept.size(), rows_.size()); ++r)
      rows_[r].crop(layout_, kept[r]);
  });
}

std::unique_ptr<CacheLayer> QuantizedLayer::fork() const {
  auto forked =
      std::make_unique<QuantizedLayer>(spec_, layout_.dtype, settings_, source_, scratch_);
  forked->rows_ = rows_;
  return forked;
}

void QuantizedLayer::for_each_block(FunctionRef<void(CacheBlock&)> body) const {
  for (const QuantRow& row : rows_) {
    for (const BlockPtr& block : row.codes) body(*block);
    if (row.flat) body(*row.flat);
    for (const BlockPtr& block : row.exact) body(*block);
  }
  for (const QuantFlush& flush : flushes_) {
    for (const BlockPtr& block : flush.fresh)
      if (block) body(*block);
    if (flush.flat) body(*flush.flat);
  }
}

namespace {

std::string side_text(const Quantizer& q) {
  return str(q.method == QuantMethod::kQuanto ? "quanto " : "hqq ", q.bits, " bit axis ", q.axis,
             " group ", q.group_size);
}

}  // namespace

std::string QuantizedLayer::format() const {
  return str("quantized keys ", side_text(layout_.k.quantizer), ", values ",
             side_text(layout_.v.quantizer), ", ", dtype_name(layout_.dtype),
             settings_.append_only ? ", append only" : "");
}

}  // namespace larder
