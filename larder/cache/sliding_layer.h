// A window of tokens in a ring, for layers whose queries look back only so far (sliding and chunked
// attention).
#pragma once

#include <memory>
#include <vector>

#include "larder/cache/layer.h"

namespace larder {

// How a row's ring is cut. A token at position p lies in slot p mod capacity.
struct SlidingStorage {
  static constexpr int64_t kUnbounded = -1;
  int64_t capacity = 0;    // tokens that the ring keeps; at least the window less one
  int32_t page_size = 64;  // tokens a page; the last one is as long as the capacity needs
  // Tokens that a row may see. A bounded row takes its pages at once and keeps them until reset; an
  // unbounded one takes each when its positions first reach it.
  int64_t max_len = kUnbounded;
};

// A page is one block, token after token; a token is K [num_kv_heads, head_dim], then V of the same
// shape. docs/caches.md draws it. (Heads lie within tokens so that the last page may be shorter
// than the others with the same strides, and a token moves in one piece.)
//
// A step's tokens lie in a block of their own, sized exactly for the step and reused while steps
// have that size: attention sees ring + step, and the ring is older than the step until commit().
// There the newest `capacity` tokens change places with those that they push out, so that cancel()
// after commit() needs no memory: it changes them back. It can do so until the layer is used in any
// other way (the next reserve, select_rows, crop, shift, fork, load, assign).
//
// Rows share pages after select_rows and fork; who is about to write into a shared page copies it
// in reserve(). The most that a row has is capacity + the step's tokens.
class SlidingLayer final : public KVLayer {
 public:
  // Needs: spec.window > 0, storage.capacity <= 2^31 - 1.
  SlidingLayer(const LayerSpec& spec, DType dtype, SlidingStorage storage,
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
  int64_t max_len() const override { return storage_.max_len; }
  int64_t kept_len(int32_t row) const override;
  void read(int32_t row, const TensorView& k, const TensorView& v) const override;
  DType dtype() const override { return dtype_; }
  int64_t sliding_window() const override;
  std::unique_ptr<Change> select_rows(std::span<const int32_t> source) override;
  // Refuses (kUnsupported) a length whose window reaches back to tokens that are gone.
  std::unique_ptr<Change> crop(std::span<const int64_t> len) override;
  std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) override;
  void check_can_shift(int64_t len, const ContextShift& shift) const override;
  void reset() noexcept override;
  std::unique_ptr<CacheLayer> fork() const override;
  void for_each_block(FunctionRef<void(CacheBlock&)> body) const override;
  std::string format() const override;
  RowImage save(int32_t row, Allocator& allocator) const override;
  std::unique_ptr<Change> load(std::span<const RowImageView> rows) override;
  std::unique_ptr<Change> assign(std::span<const RowTokens> rows) override;
  void check_assign(int64_t first_position, int64_t seq_len) const override;

 private:
  // Keeps the tokens at positions [first, len).
  struct Row {
    std::vector<BlockPtr> pages;
    int64_t len = 0, first = 0;
    int64_t added = 0, first_before = 0;  // what the last step did, for cancel()
  };

  bool bounded() const { return storage_.max_len >= 0; }
  int64_t page_tokens(size_t page) const;
  size_t pages_for(int64_t slots) const;
  int64_t slots_used(const Row& row) const;
  std::byte* token(const Row& row, int64_t position) const;
  std::byte* step_token(int64_t index) const;
  BlockPtr take_page(size_t page);
  void own_page(Row& row, size_t page);
  void make_writable(Row& row, int32_t count);
  void exchange(Row& row, int64_t at, int64_t count) noexcept;
  void take(Row& row, int64_t at, int64_t count) noexcept;
  void trim(Row& row) noexcept;
  Row make_row(int64_t first, const TensorView& k, const TensorView& v);
  void move_up(Row& row, int64_t to, int64_t from) noexcept;
  void size_view(const Step& step);
  void show_ring(const Step& step, KVSegment& segment);
  void show_step(const Step& step, KVSegment& segment);

  const LayerSpec spec_;
  const DType dtype_;
  const SlidingStorage storage_;
  std::shared_ptr<BlockSource> source_;
  int64_t side_bytes_, token_bytes_;  // K or V of a token, all heads; both
  std::vector<Row> rows_;
  size_t rows_before_ = 0;  // rows before the step that was reserved last
  BlockPtr step_;           // the step's tokens
  std::vector<BlockPtr> spare_;

  // What the view of a step points to, one entry a row of the step.
  struct Listing {
    std::vector<int64_t> table, first_position;
    std::vector<int32_t> begin, len;
  };
  Listing ring_list_, step_list_;
};

}  // namespace larder
