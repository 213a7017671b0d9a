// What a scheduler knows of the memory behind a cache: counts of blocks, no bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace larder {

class PoolView {
 public:
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  virtual ~PoolView() = default;
  virtual int64_t num_blocks() const = 0;  // that rows can ever have; kUnbounded: not counted
  virtual int64_t num_free() const = 0;    // those that nobody needs now
  // The most that one row of `len` tokens has, in all layers.
  virtual int64_t blocks_for(int64_t len) const = 0;
};

// Behind a cache whose memory is not counted in blocks: room until a step is refused.
class UnboundedPool final : public PoolView {
 public:
  int64_t num_blocks() const override { return kUnbounded; }
  int64_t num_free() const override { return kUnbounded; }
  int64_t blocks_for(int64_t /*len*/) const override { return 0; }
};

// What a scheduler knows of tokens that need not be computed: prefixes that are cached, rows that
// were put aside.
struct Beginning {
  int64_t tokens = 0;
  bool shared = true;  // takes no blocks: another one has them
};
class BeginningView {
 public:
  virtual ~BeginningView() = default;
  // Of them, those that the waiting request would begin with; nullopt: it should wait, since one
  // that runs is computing more of them right now.
  virtual std::optional<Beginning> beginning(int64_t id) = 0;
  // The request begins: gives it a row with those tokens, and says how many.
  virtual int64_t begin(int64_t id) = 0;
};

}  // namespace larder
