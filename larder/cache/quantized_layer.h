// The quantized layer with the quantizers of transformers' QuantizedCache.
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/quant_row.h"

namespace larder {

// A row is codes, then exact tokens (the residual). What a step adds is exact until its commit;
// commit quantizes everything that divides into groups
//   at a row's first step;
//   when the residual, not empty, held residual_length - 1 tokens or more before the step;
//   when it would hold more than max(residual_length, 64) after it.
// What does not divide stays exact. At such a flush, sides that append quantize the new tokens,
// others the whole row again, what was codes included (QuantSideLayout). Sliding layers keep all
// tokens.
//   view: segment 0 codes, segment 1 exact
// A tentative step may end with the token that flushes, not pass it. crop() into the codes keeps
// them as they are. shift() refuses where groups cross tokens. cancel() after a commit that flushed
// takes the tokens back; those that had been in the residual before stay rounded.
class QuantizedLayer final : public KVLayer {
 public:
  // All layers of a cache may share `scratch`. Throws for settings that cannot be followed.
  QuantizedLayer(const LayerSpec& spec, DType dtype, const QuantSettings& settings,
                 std::shared_ptr<BlockSource> blocks, std::shared_ptr<FlushScratch> scratch);
  ~QuantizedLayer() override;

  void reserve(const Step& step) override;
  KVView append(const Exec& exec, const TensorView& k, const TensorView& v,
                const Step& step) override;
  void commit(const Step& step) override;
  void accept(const Step& step, std::span<const int32_t> count) override;
  void cancel(const Step& step) noexcept override;
  const LayerSpec& spec() const override { return spec_; }
  int32_t batch() const override { return static_cast<int32_t>(rows_.size()); }
  int64_t seq_len(int32_t row) const override { return row < batch() ? row_at(row).len() : 0; }
  int64_t max_len() const override { return -1; }
  int64_t tentative_limit(int32_t row) const override;
  int64_t kept_len(int32_t row) const override { return seq_len(row); }
  void read(int32_t row, const TensorView& k, const TensorView& v) const override;
  DType dtype() const override { return layout_.dtype; }
  std::unique_ptr<Change> select_rows(std::span<const int32_t> source) override;
  std::unique_ptr<Change> crop(std::span<const int64_t> len) override;
  std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) override;
  void check_can_shift(int64_t len, const ContextShift& shift) const override;
  void reset() noexcept override { rows_.clear(); }
  std::unique_ptr<CacheLayer> fork() const override;
  void for_each_block(FunctionRef<void(CacheBlock&)> body) const override;
  std::string format() const override;
  RowImage save(int32_t row, Allocator& allocator) const override;
  std::unique_ptr<Change> load(std::span<const RowImageView> rows) override;
  std::unique_ptr<Change> assign(std::span<const RowTokens> rows) override;
  void check_assign(int64_t first_position, int64_t seq_len) const override;

  // For tests: what the row holds, and how.
  const QuantLayout& layout() const { return layout_; }
  const QuantRow& row_at(int32_t row) const { return rows_[static_cast<size_t>(row)]; }

 private:
  void check(const Step& step) const;
  // The tokens that are codes after a step of n tokens; 0 when it does not flush.
  int64_t flushes_to(const QuantRow& row, int64_t n) const;
  int64_t first_flush(const QuantRow& row) const;
  void reserve_row(const Step& step, int32_t b);
  void write(const Exec& exec, const TensorView& x, int which, const Step& step) const;
  void show_row(const QuantRow& row, size_t b, int32_t n);
  KVView view_of(const Step& step);
  void finish_step() noexcept;
  QuantRow make_row(int64_t quantized, int64_t flat_tokens, int64_t exact) const;
  QuantRow quantized_row(const RowTokens& tokens) const;

  const LayerSpec spec_;
  const QuantSettings settings_;
  const QuantLayout layout_;
  std::shared_ptr<BlockSource> source_;
  std::shared_ptr<FlushScratch> scratch_;
  std::vector<QuantRow> rows_;
  size_t rows_before_ = 0;           // rows before the step that was reserved last
  std::vector<QuantFlush> flushes_;  // of the step's rows, until it ends
  bool holds_scratch_ = false;

  // What the step's view points to, one entry a row of the step.
  struct ViewArrays {
    void resize(size_t batch, size_t code_blocks, size_t exact_blocks);
    std::vector<int64_t> code_table, exact_table, first[2], scale[2], zero[2];
    std::vector<int32_t> begin[2], len[2], flat_tokens;
  };
  ViewArrays arrays_;
};

}  // namespace larder
