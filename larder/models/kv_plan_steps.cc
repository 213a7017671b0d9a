// Walking a cache through the steps of a generation, by counts alone.
#include <algorithm>
#include <utility>

#include "larder/base/error.h"
#include "larder/models/kv_counts.h"
#include "larder/models/kv_plan.h"

namespace larder {
namespace {

constexpr int64_t kChunk = 512;  // prompt tokens a step

int64_t bytes_of(const BlockCounts& counts) {
  int64_t bytes = 0;
  for (const auto& [size, count] : counts) bytes += static_cast<int64_t>(size * count);
  return bytes;
}

// Whether any count has become more.
bool raise_to(BlockCounts& to, const BlockCounts& at_least) {
  bool raised = false;
  for (const auto& [bytes, count] : at_least) {
    size_t& value = to[bytes];
    raised = raised || value < count;
    value = std::max(value, count);
  }
  return raised;
}

// Stands for an OffloadGroup over TieredBlocks: memory for the two neighbours that need the most.
class FrameCounts {
 public:
  explicit FrameCounts(size_t layers) : with_previous_(layers) {}

  // Layer `index` has reserved; blocks(i) are those that layer i has now. Gives the most bytes of
  // frames on the way.
  template <class BlocksOf>
  int64_t reserve(size_t index, const BlocksOf& blocks) {
    const size_t layers = with_previous_.size();
    bool fewer = set_pair(index, (index + layers - 1) % layers, blocks);
    if (layers > 1) fewer = set_pair((index + 1) % layers, index, blocks) || fewer;
    BlockCounts need = fewer ? BlockCounts() : frames_;
    if (fewer) {
      for (const BlockCounts& pair : with_previous_) raise_to(need, pair);
    } else {
      raise_to(need, with_previous_[index]);
      raise_to(need, with_previous_[(index + 1) % layers]);
    }
    raise_to(frames_, need);  // frames that are too many go last
    const int64_t most = bytes_of(frames_);
    frames_ = std::move(need);
    return most;
  }
  int64_t bytes() const { return bytes_of(frames_); }

 private:
  // Whether the layer and the one before it now have fewer blocks of some size.
  template <class BlocksOf>
  bool set_pair(size_t index, size_t previous, const BlocksOf& blocks) {
    BlockCounts pair = blocks(index);
    if (previous != index)
      for (const auto& [bytes, count] : blocks(previous)) pair[bytes] += count;
    const BlockCounts before = std::exchange(with_previous_[index], pair);
    return raise_to(pair, before);
  }

  std::vector<BlockCounts> with_previous_;
  BlockCounts frames_;
};

class Walk {
 public:
  explicit Walk(CacheCounts counts)
      : counts_(std::move(counts)), frames_(counts_.kind_of_layer.size()) {}

  // As the encoder does before the first step.
  void fill_cross(int64_t batch, int64_t source_tokens) {
    const int64_t blocks = checked_mul(batch, ceil_div(source_tokens, kGrowingBlock));
    fixed_ = checked_mul(counts_.cross_block_bytes, blocks);
    memory_holds(0);
  }

  int64_t step_limit(int32_t row) const {
    int64_t least = INT64_MAX;
    for (const auto& kind : counts_.kinds) least = std::min(least, kind->step_limit(row));
    return least;
  }

  // As Cache::begin, then commit in every layer.
  void step(std::span<const RowStep> rows) {
    std::vector<Change> changes = reserve(rows);
    int64_t held = 0;
    for (const size_t kind : counts_.kind_of_layer) held += changes[kind].before;
    const int64_t new_rows = count_new(rows);
    auto state = counts_.states.begin();
    const auto take_states = [&](size_t before) {
      for (; state != counts_.states.end() && state->before <= before; ++state)
        fixed_ += new_rows * state->row_bytes;
      memory_holds(counts_.offloaded ? frames_.bytes() : held);
    };
    for (size_t i = 0; i < counts_.kind_of_layer.size(); ++i) {
      take_states(i);
      const size_t kind = counts_.kind_of_layer[i];
      layers_hold(held - changes[kind].before + changes[kind].most);
      held += counts_.kinds[kind]->bytes() - changes[kind].before;
      if (counts_.offloaded) memory_holds(reserve_frames(i, changes));
    }
    take_states(counts_.kind_of_layer.size());
    for (const auto& kind : counts_.kinds) kind->commit(rows);
  }

  KVBytes result() const {
    KVBytes result = result_;
    if (!counts_.pool) return result;
    for (const PoolCounts::Size& size : counts_.pool->sizes()) {
      result.pool.push_back({size.of.what, static_cast<int64_t>(size.of.block_bytes()),
                             size.of.num_blocks, size.most_taken});
      result.kv += static_cast<int64_t>(size.of.block_bytes()) * size.of.num_blocks;
    }
    return result;
  }

 private:
  // Of a kind's layer by its reserve(): bytes before it, the most on the way.
  struct Change {
    int64_t before, most;
    BlockCounts blocks_before;
  };

  std::vector<Change> reserve(std::span<const RowStep> rows) {
    std::vector<Change> changes;
    for (const auto& kind : counts_.kinds) {
      Change change{kind->bytes(), 0, {}};
      if (counts_.offloaded) change.blocks_before = kind->blocks();
      change.most = kind->reserve(rows);
      changes.push_back(std::move(change));
      result_.flush_scratch = std::max(result_.flush_scratch, kind->flush_scratch());
    }
    return changes;
  }

  int64_t reserve_frames(size_t index, const std::vector<Change>& changes) {
    return frames_.reserve(index, [&](size_t layer) -> const BlockCounts& {
      const size_t of = counts_.kind_of_layer[layer];
      return layer <= index ? counts_.kinds[of]->blocks() : changes[of].blocks_before;
    });
  }

  // Rows come in their order.
  int64_t count_new(std::span<const RowStep> rows) {
    const int64_t before = rows_;
    for (const RowStep& each : rows) rows_ = std::max(rows_, int64_t{each.row} + 1);
    return rows_ - before;
  }

  // Blocks of attention layers; of a pool they are there from the start.
  void layers_hold(int64_t bytes) {
    if (counts_.offloaded)
      result_.file = std::max(result_.file, bytes);
    else
      memory_holds(bytes);
  }
  void memory_holds(int64_t bytes) {
    result_.kv = std::max(result_.kv, checked_add(fixed_, counts_.pool ? 0 : bytes));
  }

  CacheCounts counts_;
  FrameCounts frames_;
  KVBytes result_;
  int64_t fixed_ = 0;  // bytes of states and cross layers
  int64_t rows_ = 0;
};

// Prompts of `tokens` tokens, row after row, as Generation feeds them.
void prefill(Walk& walk, int64_t batch, int64_t tokens) {
  std::vector<int64_t> fed(static_cast<size_t>(batch));
  std::vector<RowStep> step;
  for (size_t first = 0; first < fed.size() && tokens > 0;) {
    step.clear();
    int64_t room = kChunk;
    for (size_t row = first; row < fed.size() && room > 0; ++row) {
      const auto index = static_cast<int32_t>(row);
      const int64_t count = std::min({tokens - fed[row], room, walk.step_limit(index)});
      if (count == 0) continue;
      step.push_back({index, count});
      room -= count;
    }
    walk.step(step);
    for (const RowStep& each : step) fed[static_cast<size_t>(each.row)] += each.count;
    while (first < fed.size() && fed[first] == tokens) ++first;
  }
}

// Refuses what would not fit in 64 bits on the way.
void check_sizes(std::span<const LayerSpec> layers, const KVLoad& load) {
  int64_t a_token = 0;
  for (const LayerSpec& spec : layers)
    a_token = checked_add(a_token, checked_mul(spec.num_kv_heads, spec.head_dim));
  checked_mul(checked_mul(checked_mul(a_token, 64), std::max(load.tokens, load.source_tokens)),
              load.batch);
}

}  // namespace

std::span<const std::string_view> planned_kinds() {
  static constexpr std::string_view kKinds[] = {
      "dynamic",        "dynamic_full",    "static",    "hybrid",           "hybrid_chunked",
      "sliding_window", "quantized",       "offloaded", "offloaded_static", "offloaded_hybrid",
      "paged",          "encoder_decoder", "mamba",     "recurrent"};
  return kKinds;
}

KVBytes planned_kv_bytes(std::span<const LayerSpec> layers, const KVLoad& load) {
  const auto kinds = planned_kinds();
  if (std::ranges::find(kinds, load.kind) == kinds.end())
    fail_as(ErrorKind::kUnsupported, "no plan for the cache ", in_quotes(load.kind),
            "; there are: ", join(std::vector<std::string_view>(kinds.begin(), kinds.end()), ", "));
  LARDER_ASSERT(load.batch > 0 && load.new_tokens >= 0 && load.new_tokens <= load.tokens);
  check_sizes(layers, load);
  Walk walk(count_layers(load.kind, layers, load.options, {load.batch, load.tokens}));
  walk.fill_cross(load.batch, load.source_tokens);
  prefill(walk, load.batch, load.tokens - load.new_tokens);
  std::vector<RowStep> next;
  next.reserve(static_cast<size_t>(load.batch));
  for (int32_t row = 0; row < load.batch; ++row) next.push_back({row, 1});
  for (int64_t i = 0; i < load.new_tokens; ++i) walk.step(next);
  return walk.result();
}

}  // namespace larder
