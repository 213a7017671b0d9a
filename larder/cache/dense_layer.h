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
};

// A row is a list of blocks. A block is one allocation (tag "kv"):
//   K [num_kv_heads, block_size, head_dim], then V of the same shape
// docs/caches.md draws it. Rows share blocks after select_rows; a block is copied when a row is
// about to write into one that another row also has, so full blocks are never copied at all. With a
// fixed number of blocks, blocks that no row has any more are kept for those copies, so that
// reordering a static cache allocates nothing.
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
  int64_t kept_len(int32_t row) const override { return seq_len(row); }
  void read(int32_t row, const TensorView& k, const TensorView& v) const override;
  DType dtype() const override { return dtype_; }
  std::unique_ptr<Change> select_rows(std::span<const int32_t> source) override;
  std::unique_ptr<Change> crop(std::span<const int64_t> len) override;
  std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) override;
  void reset() noexcept override;
  std::unique_ptr<CacheLayer> fork() const override;
  void for_each_block(FunctionRef<void(CacheBlock&)> body) const override;
  std::string format() const override;
  RowImage save(int32_t row, Allocator& allocator) const override;
  std::unique_ptr<Change> load(std::span<const RowImageView> rows) override;
  std::unique_ptr<Change> assign(std::span<const RowTokens> rows) override;
  void check_assign(int64_t first_position, int64_t seq_len) const override;

 private:
  struct Row {
    std::vector<BlockPtr> blocks;
    int64_t len = 0;
  };

  BlockPtr take_block();
  void make_writable(Row& row, int64_t new_len);
  void own_blocks(Row& row, int64_t from);
  void trim(Row& row) noexcept;
  // body(first token, count, head) for each run of tokens that lie one behind the other.
  template <class Body>
  void for_each_run(const Row& row, const Body& body) const;
  Row make_row(const TensorView& k, const TensorView& v, int64_t len);
  void write(const Exec& exec, const TensorView& x, int64_t side_offset, const Step& step) const;
  KVView view_of(const Step& step);
  std::byte* token(const Row& row, int64_t index, int32_t head, int64_t side_offset) const;

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
