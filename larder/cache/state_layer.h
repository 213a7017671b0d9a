// Convolution windows and recurrent states, for Mamba and RG-LRU layers.
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/layer.h"

namespace larder {

// A row has two blocks of f32, each conv [conv_channels, conv_kernel], then state [state_size]: one
// holds the state, the step's result goes to the other, and commit() swaps them. So a step can be
// taken back until the next reserve(), and a state is never overwritten: rows and forks share it
// freely. Blocks that a change of rows leaves over are kept for later steps, so that reordering
// takes no new memory once every row has had its two.
class FixedStateLayer final : public StateLayer {
 public:
  FixedStateLayer(const LayerSpec& spec, std::shared_ptr<BlockSource> blocks);

  void reserve(const Step& step) override;
  Row row(const Step& step, int32_t b) override;
  void commit(const Step& step) override;
  void accept(const Step& step, std::span<const int32_t> count) override;
  void cancel(const Step& step) noexcept override;
  const LayerSpec& spec() const override { return spec_; }
  int32_t batch() const override { return static_cast<int32_t>(rows_.size()); }
  int64_t seq_len(int32_t row) const override;
  int64_t max_len() const override { return -1; }
  const float* conv_of(int32_t row) const override;
  const float* state_of(int32_t row) const override;
  std::unique_ptr<Change> select_rows(std::span<const int32_t> source) override;
  // To its whole length, or to 0: what a state has taken in cannot be taken out.
  std::unique_ptr<Change> crop(std::span<const int64_t> len) override;
  std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) override;
  void check_can_shift(int64_t len, const ContextShift& shift) const override;
  void reset() noexcept override;
  std::unique_ptr<CacheLayer> fork() const override;
  void for_each_block(FunctionRef<void(CacheBlock&)> body) const override;
  std::string format() const override;
  RowImage save(int32_t row, Allocator& allocator) const override;
  std::unique_ptr<Change> load(std::span<const RowImageView> rows) override;

 private:
  struct Held {
    BlockPtr now;    // of a row without tokens: zeros once a step is reserved
    BlockPtr other;  // the state before the last step, and room for the next
    int64_t len = 0;
  };

  void check(const Step& step) const;
  BlockPtr take_block();
  void make_ready(Held& row);
  void retire(BlockPtr& block) noexcept;
  float* floats(const BlockPtr& block, int64_t offset) const;
  const Held& at(int32_t row) const;

  const LayerSpec spec_;
  std::shared_ptr<BlockSource> source_;
  int64_t conv_floats_, floats_;  // of a block's first part, of a block
  std::vector<Held> rows_;
  size_t rows_before_ = 0;  // rows before the step that was reserved last
  std::vector<BlockPtr> spare_;
};

}  // namespace larder
