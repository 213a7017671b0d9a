// The offloaded kinds: any layer over blocks that are in memory only around its turn.
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/layer.h"
#include "larder/cache/tiered_blocks.h"

namespace larder {

class OffloadedLayer;

// The layers of one cache, which take turns. Awake are at most the one that attention reads and the
// one after it (after the last one: the first), which is read from the file meanwhile. Memory is
// for the two neighbours that need the most, taken when a layer reserves.
class OffloadGroup {
 public:
  OffloadGroup(std::shared_ptr<TieredBlocks> blocks, size_t layers)
      : blocks_(std::move(blocks)), layers_(layers) {}
  ~OffloadGroup() { blocks_->release(held_); }
  OffloadGroup(const OffloadGroup&) = delete;
  OffloadGroup& operator=(const OffloadGroup&) = delete;

 private:
  friend class OffloadedLayer;
  // The group of a forked cache, for its layer `index`: all layers of one fork share one.
  std::shared_ptr<OffloadGroup> fork(size_t index);
  OffloadedLayer* neighbour(size_t index, size_t step) const;
  void count_pair(OffloadedLayer* first, OffloadedLayer* second);
  BlockCounts need_with(size_t index);
  void reserve_for(size_t index);
  void give_back(size_t index) noexcept;
  void reserve_alone(const OffloadedLayer& layer);
  void take_turn(size_t index);
  void emptied(size_t index) noexcept;

  std::shared_ptr<TieredBlocks> blocks_;
  std::vector<OffloadedLayer*> layers_;  // null where another layer has taken the place
  BlockCounts held_;                     // memory reserved
  std::weak_ptr<OffloadGroup> forked_;
};

// Everything a layer can do, the inner layer does; this one sees to it that its blocks are awake
// where it reads or writes them, and asleep or idle where it only moves them. A disk that fails in
// mid-step shows as Error(kIo) from append, commit or accept, else from the next reserve: nothing
// wrong is ever computed from, and tokens committed before are kept.
class OffloadedLayer final : public KVLayer {
 public:
  // `inner` takes its blocks from the group's TieredBlocks.
  OffloadedLayer(std::shared_ptr<OffloadGroup> group, size_t index, std::unique_ptr<KVLayer> inner);
  ~OffloadedLayer() override;

  void reserve(const Step& step) override;
  KVView append(const Exec& exec, const TensorView& k, const TensorView& v,
                const Step& step) override;
  void commit(const Step& step) override;
  void accept(const Step& step, std::span<const int32_t> count) override;
  void cancel(const Step& step) noexcept override;
  const LayerSpec& spec() const override { return inner_->spec(); }
  int32_t batch() const override { return inner_->batch(); }
  int64_t seq_len(int32_t row) const override { return inner_->seq_len(row); }
  int64_t max_len() const override { return inner_->max_len(); }
  int64_t tentative_limit(int32_t row) const override { return inner_->tentative_limit(row); }
  int64_t step_limit(int32_t row) const override { return inner_->step_limit(row); }
  int64_t kept_len(int32_t row) const override { return inner_->kept_len(row); }
  void read(int32_t row, const TensorView& k, const TensorView& v) const override;
  DType dtype() const override { return inner_->dtype(); }
  int64_t sliding_window() const override { return inner_->sliding_window(); }
  std::unique_ptr<Change> select_rows(std::span<const int32_t> source) override;
  std::unique_ptr<Change> crop(std::span<const int64_t> len) override;
  std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) override;
  void check_can_shift(int64_t len, const ContextShift& shift) const override {
    inner_->check_can_shift(len, shift);
  }
  void reset() noexcept override;
  std::unique_ptr<CacheLayer> fork() const override;
  void for_each_block(FunctionRef<void(CacheBlock&)> body) const override {
    inner_->for_each_block(body);
  }
  std::string format() const override { return inner_->format(); }
  RowImage save(int32_t row, Allocator& allocator) const override;
  std::unique_ptr<Change> load(std::span<const RowImageView> rows) override;
  std::unique_ptr<Change> assign(std::span<const RowTokens> rows) override;
  void check_assign(int64_t first_position, int64_t seq_len) const override {
    inner_->check_assign(first_position, seq_len);
  }

 private:
  friend class OffloadGroup;
  TieredBlocks& blocks() const { return *group_->blocks_; }
  bool wake() const noexcept;
  bool bring() const noexcept;
  void sleep() const noexcept;
  void visit() const;
  void written() noexcept;
  void refuse_lost() const;
  std::unique_ptr<Change> sleeping(std::unique_ptr<Change> change);

  std::shared_ptr<OffloadGroup> group_;
  const size_t index_;
  std::unique_ptr<KVLayer> inner_;
  BlockCounts with_previous_;   // distinct blocks of this layer and the one before it
  mutable bool awake_ = false;  // its blocks are pinned; const calls may wake it
  bool appended_ = false;       // in the step that was reserved last
  bool lost_ = false;           // a change that could not fail could not read its blocks
};

// The layer as what it is. Needs: it is one.
std::unique_ptr<KVLayer> kv_layer(std::unique_ptr<CacheLayer> layer);

// Wraps layers that take their blocks from `blocks`, in the order in which a model runs them.
std::vector<std::unique_ptr<CacheLayer>> offload_layers(
    std::vector<std::unique_ptr<CacheLayer>> inner, const std::shared_ptr<TieredBlocks>& blocks);

}  // namespace larder
