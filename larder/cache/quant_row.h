// One row of a quantized layer: codes of its first tokens, then exact ones.
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/block.h"
#include "larder/cache/quant_layout.h"

namespace larder {

// Memory that flushes work in (tag "scratch"). All layers of a cache flush one after another and
// share it; it goes back when the last one that holds it has flushed.
class FlushScratch {
 public:
  explicit FlushScratch(Allocator& allocator) : allocator_(allocator) {}
  void hold() noexcept { ++holders_; }
  void grow(size_t bytes);  // for all that hold it; throws OutOfMemory
  void release() noexcept;
  std::byte* data() const { return buffer_.data(); }
  Allocator& allocator() const { return allocator_; }

 private:
  Allocator& allocator_;
  Buffer buffer_;
  int holders_ = 0;
};

// Blocks may be shared with other rows and forks.
struct QuantRow {
  std::vector<BlockPtr> codes;
  BlockPtr flat;            // parameters of the flat sides; null without tokens or flat sides
  int64_t quantized = 0;    // tokens that are codes
  int64_t flat_tokens = 0;  // of the tensor that was quantized; more than `quantized` after a crop
  std::vector<BlockPtr> exact;
  int64_t exact_begin = 0, exact_len = 0;  // slots of the exact blocks

  int64_t len() const { return quantized + exact_len; }
  std::byte* exact_at(const QuantLayout& layout, int which, int64_t index, int32_t head) const;
  // Codes of one head of a token; scales or zeros that it has in its block (aligned sides).
  std::byte* codes_at(const QuantLayout& layout, int which, int64_t token, int32_t head) const;
  std::byte* scales_at(const QuantLayout& layout, int which, int64_t token, int32_t head) const;
  std::byte* zeros_at(const QuantLayout& layout, int which, int64_t token, int32_t head) const;
  // head_dim values of a token, rounded to the cache's dtype.
  void load(const QuantLayout& layout, int which, int64_t token, int32_t head, float* out) const;
  // Gives back the blocks past the row's end.
  void trim(const QuantLayout& layout) noexcept;
  // The first `len` tokens stay. Codes stay as they are, inside a group too.
  void crop(const QuantLayout& layout, int64_t len) noexcept;
};

// Gives head_dim values of a token and head, numbers of the cache's dtype.
using LoadToken = FunctionRef<void(int64_t token, int32_t head, float* out)>;

// A flush that was prepared: everything that it writes into. `quantized` 0: none.
struct QuantFlush {
  int64_t quantized = 0;  // tokens that will be codes
  int64_t first_block = 0;
  std::vector<BlockPtr> fresh;  // from first_block on; null: the row's own block, in place
  BlockPtr flat;

  // Takes what a flush of the row to `tokens` needs, its part of the scratch excepted.
  static QuantFlush prepare(const QuantLayout& layout, QuantRow& row, int64_t tokens,
                            BlockSource& source);
  // Quantizes the row's own tokens. `scratch`: layout.scratch_bytes(row.quantized, quantized).
  void run(const QuantLayout& layout, QuantRow& row, std::byte* scratch) noexcept;

  // The steps of run(): codes of tokens [from, quantized) of one side, where flat sides begin at 0;
  // then the row has them, and their exact tokens still.
  void write_side(const QuantLayout& layout, const QuantRow& row, int which, int64_t from,
                  LoadToken load, std::byte* scratch) const noexcept;
  void give_to(QuantRow& row) noexcept;
};

}  // namespace larder
