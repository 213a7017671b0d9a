// One layer's share of a KV cache: the interface that every cache kind implements.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "larder/tensor/exec.h"
#include "larder/tensor/kv_view.h"
#include "larder/tensor/step.h"
#include "larder/tensor/tensor.h"

namespace larder {

// What a cache needs to know of a layer. It comes from the model; the mask comes from the model
// too, never from here.
struct LayerSpec {
  int32_t num_kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // sliding layers: a query sees this many keys, its own included; 0 = all
};

// A change that was prepared and can no longer fail. Dropping it without apply() leaves everything
// as it was.
class Change {
 public:
  virtual ~Change() = default;
  virtual void apply() noexcept = 0;
};

// Keeps K and V of several rows (sequences) of different lengths. The life of a step:
//   reserve(step)            the only call that allocates or may fail; no token has changed when it
//   throws view = append(k, v)      writes the new tokens behind the old ones; `view` shows old +
//   new until commit (attention reads view) commit(step)             the new tokens count; a kind
//   that drops or rounds does it here, never before
// A tentative step commits nothing: accept(step, count) afterwards takes the first count[b] tokens
// of each row. cancel(step) instead of commit, or after it, takes the step back, as far as the kind
// can (dense kinds: always). Rows are numbered by cache row ("slot"); a row exists from its first
// reserve. Not thread-safe.
class CacheLayer {
 public:
  virtual ~CacheLayer() = default;

  // Throws Error(kNoRoom) or OutOfMemory; kInvalid when a row's first position is not its length.
  virtual void reserve(const Step& step) = 0;
  // k, v: [total_q, num_kv_heads, head_dim] f32, rope applied, contiguous. Needs: reserve(step).
  virtual KVView append(const Exec& exec, const TensorView& k, const TensorView& v,
                        const Step& step) = 0;
  virtual void commit(const Step& step) = 0;
  virtual void accept(const Step& step, std::span<const int32_t> count) = 0;
  virtual void cancel(const Step& step) noexcept = 0;

  virtual const LayerSpec& spec() const = 0;
  virtual int32_t batch() const = 0;  // rows
  virtual int64_t seq_len(int32_t row)
      const = 0;  // tokens seen by the row, whatever is kept; 0 for a row never written
  virtual int64_t max_len() const = 0;  // capacity a row; -1 = unbounded
  // Copies what the row keeps, oldest first, to k and v [num_kv_heads, kept, head_dim] of the
  // cache's dtype.
  virtual int64_t kept_len(int32_t row) const = 0;
  virtual void read(int32_t row, const TensorView& k, const TensorView& v) const = 0;
  virtual DType dtype() const = 0;

  // Prepares row i := old row source[i] for every i; batch() becomes source.size(). Sources may
  // repeat. May throw.
  virtual std::unique_ptr<Change> select_rows(std::span<const int32_t> source) = 0;
  // Prepares row r := its first len[r] tokens. A kind that no longer holds what the row would need
  // refuses here.
  virtual std::unique_ptr<Change> crop(std::span<const int64_t> len) = 0;
  virtual void reset() noexcept = 0;  // no rows, no tokens
};

}  // namespace larder
