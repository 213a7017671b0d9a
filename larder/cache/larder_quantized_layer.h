// A layer whose older tokens are codes and whose newest ones are exact; each token is quantized
// once, when it leaves the exact window (quantized cache, backend "larder").
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/coded_block.h"
#include "larder/cache/layer.h"

namespace larder {

struct LarderQuantizedOptions {
  DType dtype = DType::kF32;  // of exact tokens
  CodeRecipe key, value;
  int64_t residual_length = 128;
  bool hadamard = false;
  int64_t rollback = 0;  // sliding layers keep so many tokens more than the window needs
};

// A row is a list of blocks of 64 positions, [64b, 64b + 64):
//   coded blocks (coded_block.h), then exact ones (as DenseLayer: K, then V, of all heads)
// After every step that commits, block b is coded iff 64 (b + 1) <= len - residual_length. So a
// query at position p that is fed alone reads as codes what lies before 64 * floor((p - R) / 64),
// and so does every query of a step that stays within step_limit(). Sliding layers give back blocks
// that have left the window, in the next reserve().
class LarderQuantizedLayer final : public KVLayer {
 public:
  LarderQuantizedLayer(const LayerSpec& spec, const LarderQuantizedOptions& options,
                       std::shared_ptr<BlockSource> blocks);

  void reserve(const Step& step) override;
  KVView append(const Exec& exec, const TensorView& k, const TensorView& v,
                const Step& step) override;
  void commit(const Step& step) override;
  void accept(const Step& step, std::span<const int32_t> count) override;
  // After commit(): a block that the step made of codes stays so, where all its tokens remain.
  void cancel(const Step& step) noexcept override;
  const LayerSpec& spec() const override { return spec_; }
  int32_t batch() const override { return static_cast<int32_t>(rows_.size()); }
  int64_t seq_len(int32_t row) const override;
  int64_t max_len() const override { return -1; }
  // Both stop before the next block turns into codes.
  int64_t tentative_limit(int32_t row) const override;
  int64_t step_limit(int32_t row) const override { return tentative_limit(row); }
  int64_t kept_len(int32_t row) const override;
  void read(int32_t row, const TensorView& k, const TensorView& v) const override;
  DType dtype() const override { return options_.dtype; }
  std::unique_ptr<Change> select_rows(std::span<const int32_t> source) override;
  // A coded block that is cut becomes an exact one with the values that its codes stood for.
  std::unique_ptr<Change> crop(std::span<const int64_t> len) override;
  // Coded keys that move are turned and quantized anew; values keep their codes.
  std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) override;
  void check_can_shift(int64_t len, const ContextShift& shift) const override;
  void reset() noexcept override { rows_.clear(); }
  std::unique_ptr<CacheLayer> fork() const override;
  void for_each_block(FunctionRef<void(CacheBlock&)> body) const override;
  void for_each_block_of(int32_t row, FunctionRef<void(const RowBlock&)> body) const override;
  std::string format() const override;
  RowImage save(int32_t row, Allocator& allocator) const override;
  std::unique_ptr<Change> load(std::span<const RowImageView> rows) override;
  std::unique_ptr<Change> assign(std::span<const RowTokens> rows) override;
  void check_assign(int64_t first_position, int64_t seq_len) const override;
  BlockSource* block_source() const override { return source_.get(); }
  int64_t blocks_of(int64_t len, int64_t step) const override;  // of codes, as if all were

 private:
  struct Row {
    std::vector<BlockPtr> coded, exact;
    std::vector<BlockPtr> prepared;  // by reserve(), for what commit() will quantize
    BlockPtr cut;  // exact block that the row would end in if the last step were cancelled
    int64_t first_block = 0;  // blocks given back
    int64_t first = 0;        // first position kept
    int64_t len = 0;

    int64_t coded_end() const { return first_block + static_cast<int64_t>(coded.size()); }
  };
  enum class Part : uint8_t { kKey, kValue };

  void check(const Step& step) const;
  int64_t blocks_due(int64_t len) const;
  void drop_behind_window(Row& row) const;
  void make_room(Row& row, int64_t count);
  void advance(Row& row, int64_t count);
  void step_back(Row& row, int64_t len) noexcept;
  void trim(Row& row) const noexcept;
  BlockPtr make_exact() const;
  BlockPtr make_coded() const;
  void encode(const CacheBlock& exact, CacheBlock& coded) const;
  void thaw(const CacheBlock& coded, CacheBlock& exact) const;
  std::byte* slot(const CacheBlock& exact, Part part, int32_t head, int64_t slot) const;
  void store(std::byte* to, Part part, const float* x) const;
  void token_floats(const Row& row, int64_t position, int32_t head, Part part, float* out) const;
  void write(const Exec& exec, Part part, const TensorView& x, const Step& step) const;
  KVView view_of(const Step& step);
  KVSegment segment_of(bool coded);
  Row row_of(const RowImageView& image) const;
  Row row_of(const RowTokens& tokens) const;
  BlockPtr shifted_codes(const Row& row, const ContextShift& shift, int64_t block) const;
  BlockPtr shifted_exact(const Row& row, const ContextShift& shift, int64_t block,
                         int64_t len) const;
  void shifted_key(const Row& row, const ContextShift& shift, int64_t position, int32_t head,
                   float* out) const;

  const LayerSpec spec_;
  const LarderQuantizedOptions options_;
  const CodedBlock coded_;
  std::shared_ptr<BlockSource> source_;
  int64_t token_bytes_, head_bytes_, side_bytes_;  // of exact blocks, as in DenseLayer
  std::vector<Row> rows_;
  size_t rows_before_ = 0;  // rows before the step that was reserved last

  // What the step's view points to: one entry a row of the step, [0] of codes, [1] exact.
  std::vector<int64_t> table_[2], first_position_[2];
  std::vector<int32_t> begin_[2], len_[2];
};

}  // namespace larder
