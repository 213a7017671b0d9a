// Full-precision storage in blocks, for the dynamic and the static kind.
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/layer.h"

namespace larder {

// How a row's storage is cut. Contiguous storage is one block.
struct DenseStorage {
  static constexpr int32_t kUnbounded = 0;
  int32_t block_size = 64;  // tokens
  int32_t max_blocks = kUnbounded;
  // Gives back blocks behind the layer's window, but for so many tokens more (paged; else a window
  // is a SlidingLayer's).
  static constexpr int64_t kKeepAll = -1;
  int64_t rollback = kKeepAll;
  // Lists of blocks have room for this many a row from the start, so that a row which grows takes
  // nothing but blocks.
  int32_t listed_blocks = 0;
};

// A row is a list of blocks. A block is one allocation (tag "kv"):
//   K [num_kv_heads, block_size, head_dim], then V of the same shape
// docs/caches.md draws it. Block i holds the positions [i block_size, (i + 1) block_size). Rows
// share blocks after select_rows; a block is copied when a row is about to write into one that
// another row also has, so full blocks are never copied at all. With a fixed number of blocks,
// blocks that no row has any more are kept for those copies, so that reordering a static cache
// allocates nothing. Blocks behind a window go in the next reserve().
class DenseLayer final : public KVLayer {
 public:
  DenseLayer(const LayerSpec& spec, DType dtype, DenseStorage storage,
             std::shared_ptr<BlockSource> blocks);

  void reserve(const Step& step) override;
  KVView append(const Exec& exec, const TensorView& k, const TensorView& v,
                const Step& step) override;
  void commit(const Step& step) override;
  void accept(const Step& step, std::span<const int32_t> count) override;
  void cancel(const Step& step) noexcept override;
  const LayerSpec& spec() const override { return spec_; }
  int32_t batch() const override { return static_cast<int32_t>(rows_.size()); }
  int64_t seq_len(int32_t row) const override;
  int64_t max_len() const override;
  int64_t kept_len(int32_t row) const override;
  void read(int32_t row, const TensorView& k, const TensorView& v) const override;
  DType dtype() const override { return dtype_; }
  int64_t sliding_window() const override { return window(); }
  std::unique_ptr<Change> select_rows(std::span<const int32_t> source) override;
  // Refuses (kUnsupported) a length whose window reaches back to tokens that are gone.
  std::unique_ptr<Change> crop(std::span<const int64_t> len) override;
  std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) override;
  void check_can_shift(int64_t len, const ContextShift& shift) const override;
  void reset() noexcept override;
  std::unique_ptr<CacheLayer> fork() const override;
  void for_each_block(FunctionRef<void(CacheBlock&)> body) const override;
  void for_each_block_of(int32_t row, FunctionRef<void(const RowBlock&)> body) const override;
  std::string format() const override;
  RowImage save(int32_t row, Allocator& allocator) const override;
  std::unique_ptr<Change> load(std::span<const RowImageView> rows) override;
  std::unique_ptr<Change> assign(std::span<const RowTokens> rows) override;
  void check_assign(int64_t first_position, int64_t seq_len) const override;
  int32_t shared_block_size() const override;
  BlockPtr shared_block(int32_t row, int64_t index) const override;
  std::unique_ptr<Change> adopt(int32_t row, int64_t first_block, std::span<const BlockPtr> blocks,
                                int64_t len) override;
  BlockSource* block_source() const override { return source_.get(); }
  int64_t blocks_of(int64_t len, int64_t step) const override;

 private:
  // Keeps the tokens at positions [first, len).
  struct Row {
    std::vector<BlockPtr> blocks;
    int64_t len = 0, first = 0;
    int64_t first_block = 0;  // blocks given back
  };

  bool slides() const { return storage_.rollback != DenseStorage::kKeepAll && spec_.window > 0; }
  int64_t window() const { return slides() ? spec_.window : 0; }
  int64_t rollback() const { return slides() ? storage_.rollback : 0; }
  void drop_behind_window(Row& row) const noexcept;
  size_t blocks_up_to(const Row& row, int64_t len) const;
  BlockPtr take_block();
  void make_writable(Row& row, int64_t new_len);
  void own_blocks(Row& row, int64_t from);
  void trim(Row& row) noexcept;
  // body(first token, count, head) for each run of tokens that lie one behind the other.
  template <class Body>
  void for_each_run(const Row& row, const Body& body) const;
  Row make_row(int64_t first, const TensorView& k, const TensorView& v);
  void write(const Exec& exec, const TensorView& x, int64_t side_offset, const Step& step) const;
  KVView view_of(const Step& step);
  std::byte* token(const Row& row, int64_t index, int32_t head, int64_t side_offset) const;
  void move_token(const Row& row, int64_t to, int64_t from, int64_t first_block) const;

  const LayerSpec spec_;
  const DType dtype_;
  const DenseStorage storage_;
  std::shared_ptr<BlockSource> source_;
  int64_t token_bytes_, head_bytes_,
      side_bytes_;  // one head of one token; of one block; all heads of one block
  std::vector<Row> rows_;
  size_t rows_before_ = 0;  // rows before the step that was reserved last
  std::vector<BlockPtr> spare_;

  // What the step's view points to, one entry a row of the step.
  std::vector<int64_t> table_, first_position_;
  std::vector<int32_t> begin_, len_;
};

}  // namespace larder
