// One layer's share of a cache: the interfaces that every cache kind implements. CacheLayer is what
// all layers have in common, KVLayer keeps keys and values, StateLayer a fixed state a row.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "larder/cache/block.h"
#include "larder/tensor/exec.h"
#include "larder/tensor/kv_view.h"
#include "larder/tensor/step.h"
#include "larder/tensor/tensor.h"

namespace larder {

enum class LayerKind : uint8_t {
  kAttention,  // keys and values of the tokens themselves
  kCross,      // keys and values of an encoder's output, written once a source
  kState,      // a convolution window and a recurrent state (Mamba, RG-LRU)
};

// What a cache needs to know of a layer. It comes from the model; the mask comes from the model
// too, never from here.
struct LayerSpec {
  int32_t num_kv_heads = 0, head_dim = 0;
  // How many keys back a query may look, its own included, in sliding and chunked layers; 0 = all.
  int64_t window = 0;
  LayerKind kind = LayerKind::kAttention;
  // kState: the last conv_kernel inputs of conv_channels channels, and state_size floats.
  int32_t conv_channels = 0, conv_kernel = 0;
  int64_t state_size = 0;
};

// A change that was prepared and can no longer fail. Dropping it without apply() leaves everything
// as it was.
class Change {
 public:
  virtual ~Change() = default;
  virtual void apply() noexcept = 0;
};

// A Change from a function.
template <class Apply>
std::unique_ptr<Change> prepared(Apply apply) {
  class Prepared final : public Change {
   public:
    explicit Prepared(Apply apply) : apply_(std::move(apply)) {}
    void apply() noexcept override { apply_(); }

   private:
    Apply apply_;
  };
  return std::make_unique<Prepared>(std::move(apply));
}

// A context shift: tokens [keep, keep + discard) go, those behind them move up by `discard`
// positions. Their keys turn by the angles of -discard: channel pair (i, i + half) of every head
// becomes (a cos - b sin, b cos + a sin), i < half = cos.size(); other channels stay.
struct ContextShift {
  int64_t keep = 0, discard = 0;
  std::span<const float> cos, sin;
};

// What a row of a layer holds, in the layer's own format, for files: load() of what save() gave
// restores the row bit for bit. Names are the kind's own ("k", "v", "k_codes", ...).
struct SavedTensor {
  std::string name;
  Tensor tensor;
};
struct RowImage {
  int64_t seq_len = 0;  // tokens seen by the row, whatever is kept
  std::vector<SavedTensor> tensors;
};
struct RowImageView {  // the same, borrowed
  struct Named {
    std::string_view name;
    TensorView tensor;
  };
  int64_t seq_len = 0;
  std::vector<Named> tensors;
};

class KVLayer;
class StateLayer;

// Rows are sequences of different lengths, numbered by cache row ("slot"); a row exists from its
// first reserve. The life of a step:
//   reserve(step)  the only call that allocates or may fail; no token has changed when it throws
//   append or the like, see the subclasses
//   commit(step)   the new tokens count; a kind that drops or rounds does it here, never before
// A tentative step commits nothing: accept(step, count) afterwards takes the first count[b] tokens
// of each row, as if they had been fed one by one. cancel(step) instead of commit, or after it,
// takes the step back, as far as the kind can (dense kinds: always). Not thread-safe.
class CacheLayer {
 public:
  virtual ~CacheLayer() = default;

  // Throws Error(kNoRoom) or OutOfMemory; kInvalid when a row's first position is not its length;
  // kUnsupported for a tentative step past tentative_limit().
  virtual void reserve(const Step& step) = 0;
  virtual void commit(const Step& step) = 0;
  virtual void accept(const Step& step, std::span<const int32_t> count) = 0;
  virtual void cancel(const Step& step) noexcept = 0;

  virtual const LayerSpec& spec() const = 0;
  virtual int32_t batch() const = 0;  // rows
  // Tokens seen by the row, whatever is kept; 0 for a row never written.
  virtual int64_t seq_len(int32_t row) const = 0;
  virtual int64_t max_len() const = 0;  // capacity a row; -1 = unbounded
  // Most tokens of a tentative step for the row: a quantized layer stops before its next flush, a
  // recurrent state cannot step back at all (0).
  virtual int64_t tentative_limit(int32_t /*row*/) const {
    return std::numeric_limits<int64_t>::max();
  }
  // Most tokens of a step for the row whose queries see what they would see if fed one by one. A
  // longer step is right as well, but a kind that rounds shows more of it exact.
  virtual int64_t step_limit(int32_t /*row*/) const { return std::numeric_limits<int64_t>::max(); }

  // Prepares row i := old row source[i] for every i; batch() becomes source.size(). Sources may
  // repeat. May throw. Rows that keep their place cost nothing.
  virtual std::unique_ptr<Change> select_rows(std::span<const int32_t> source) = 0;
  // Prepares row r := its first len[r] tokens. A kind that no longer holds what the row would need
  // refuses here.
  virtual std::unique_ptr<Change> crop(std::span<const int64_t> len) = 0;
  // Prepares a context shift of one row. Refuses (kUnsupported) where tokens would be missing.
  virtual std::unique_ptr<Change> shift(int32_t row, const ContextShift& shift) = 0;
  // Refuses (kUnsupported) the shift of a row that was fed to this layer and has `len` tokens, as
  // shift() would; so that a generation can ask before it begins.
  virtual void check_can_shift(int64_t /*len*/, const ContextShift& /*shift*/) const {}
  virtual void reset() noexcept = 0;  // no rows, no tokens

  // A second layer with the same content that shares blocks with this one; either copies before it
  // writes into a shared block.
  virtual std::unique_ptr<CacheLayer> fork() const = 0;
  // Every block that the layer holds, a shared one once for each holder.
  virtual void for_each_block(FunctionRef<void(CacheBlock&)> body) const = 0;
  // The blocks that a row has of a pool, each once; none where nobody counts them.
  struct RowBlock {
    const CacheBlock& block;
    int64_t slots, used;  // tokens that it holds at most, and those of the row
  };
  virtual void for_each_block_of(int32_t /*row*/,
                                 FunctionRef<void(const RowBlock&)> /*body*/) const {}
  // Where its blocks come from; null where that is no one's business.
  virtual BlockSource* block_source() const { return nullptr; }
  // The most blocks that a row has while it grows to `len` tokens in steps of at most `step`; 0
  // where nobody counts them.
  virtual int64_t blocks_of(int64_t /*len*/, int64_t /*step*/) const { return 0; }

  // What must be equal for an image of another layer to fit: "dense f32", "quanto 4 bit ...".
  virtual std::string format() const = 0;
  virtual RowImage save(int32_t row, Allocator& allocator) const = 0;
  // Prepares that the layer holds these rows and no others. Refuses names, shapes and dtypes that
  // its format does not have, and lengths past max_len().
  virtual std::unique_ptr<Change> load(std::span<const RowImageView> rows) = 0;

  virtual KVLayer* as_kv() { return nullptr; }
  virtual StateLayer* as_state() { return nullptr; }
};

// What a row keeps, oldest token first, as plain numbers.
struct RowTokens {
  int64_t first_position = 0;  // of the first token kept; the row has seen first_position + n
  TensorView k, v;             // [num_kv_heads, n, head_dim], any float dtype
};

// Keeps K and V.
//   view = append(k, v)   writes the new tokens behind the old ones; `view` shows old + new, exact,
//   until commit (attention reads it)
class KVLayer : public CacheLayer {
 public:
  // k, v: [total_q, num_kv_heads, head_dim] f32, rope applied, contiguous. Needs: reserve(step). A
  // step without tokens shows what its rows hold.
  virtual KVView append(const Exec& exec, const TensorView& k, const TensorView& v,
                        const Step& step) = 0;

  virtual int64_t kept_len(int32_t row) const = 0;
  // Copies what the row keeps, oldest first, to k and v [num_kv_heads, kept, head_dim] of dtype().
  virtual void read(int32_t row, const TensorView& k, const TensorView& v) const = 0;
  virtual DType dtype() const = 0;
  // 0 for a layer that keeps every token. Else the window after which it may drop tokens: it keeps
  // at least the last sliding_window() - 1, those that a next query may see.
  virtual int64_t sliding_window() const { return 0; }
  // Prepares that the layer holds these rows and no others, for conversion between kinds. Refuses
  // rows that begin too late for what the layer must be able to show.
  virtual std::unique_ptr<Change> assign(std::span<const RowTokens> rows) = 0;
  // Sharing of single blocks between rows and a prefix cache, by layers whose rows are lists of
  // equal blocks: tokens a block, 0 for layers that cannot.
  virtual int32_t shared_block_size() const { return 0; }
  // The block of positions [index * size, (index + 1) * size), of which the row has the first at
  // least; null when that is gone.
  virtual BlockPtr shared_block(int32_t /*row*/, int64_t /*index*/) const { return {}; }
  // Prepares that a row without tokens, or a new row, has seen `len` tokens and has these blocks,
  // which end with the last of them. Needs: shared_block_size() > 0, blocks of this layer's kind
  // that reach back as far as its window.
  virtual std::unique_ptr<Change> adopt(int32_t row, int64_t first_block,
                                        std::span<const BlockPtr> blocks, int64_t len);
  // Refuses a row that assign() would refuse: it has seen seq_len tokens and keeps those from
  // first_position on. So a conversion can ask all layers before it changes one.
  virtual void check_assign(int64_t first_position, int64_t seq_len) const = 0;

  KVLayer* as_kv() final { return this; }
};

// Keeps, for each row, the last conv_kernel inputs of a causal convolution and a recurrent state.
// The state after the step is written beside the one before it, so that cancel() can step back.
class StateLayer : public CacheLayer {
 public:
  // Needs: reserve(step). Of the step's row b: the state before it (zeros for a new row), and where
  // to write the one after it. conv: [conv_channels, conv_kernel], the newest input last, zeros on
  // the old side of a short row; state: [state_size].
  struct Row {
    const float *conv_before, *state_before;
    float *conv, *state;
  };
  virtual Row row(const Step& step, int32_t b) = 0;
  // The committed state of a cache row, for export. Needs: seq_len(row) > 0.
  virtual const float* conv_of(int32_t row) const = 0;
  virtual const float* state_of(int32_t row) const = 0;

  int64_t tentative_limit(int32_t /*row*/) const override { return 0; }
  StateLayer* as_state() final { return this; }
};

}  // namespace larder
