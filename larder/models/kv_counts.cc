#include "larder/models/kv_counts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/larder_quantized_config.h"
#include "larder/cache/registry.h"
#include "larder/tensor/shape.h"

namespace larder {

int64_t LayerCounts::reserve(std::span<const RowStep> step) {
  most_ = bytes_;
  reserve_blocks(step);
  return most_;
}

void LayerCounts::take(int64_t block_bytes, int64_t count) {
  if (block_bytes == 0 || count == 0) return;
  blocks_[static_cast<size_t>(block_bytes)] += static_cast<size_t>(count);
  bytes_ = checked_add(bytes_, checked_mul(block_bytes, count));
  most_ = std::max(most_, bytes_);
}

void LayerCounts::give(int64_t block_bytes, int64_t count) {
  if (block_bytes == 0 || count == 0) return;
  const auto at = blocks_.find(static_cast<size_t>(block_bytes));
  at->second -= static_cast<size_t>(count);
  if (at->second == 0) blocks_.erase(at);
  bytes_ -= block_bytes * count;
}

namespace {

constexpr int64_t kBlock = 64;  // tokens a block of every kind that grows

class DenseCounts final : public LayerCounts {
 public:
  DenseCounts(int64_t token_bytes, int64_t block) : bytes_(token_bytes * block), block_(block) {}
  void commit(std::span<const RowStep> step) override {
    for (const RowStep& each : step) row_at(len_, each) += each.count;
  }

 private:
  void reserve_blocks(std::span<const RowStep> step) override {
    for (const RowStep& each : step) {
      const int64_t len = row_at(len_, each);
      take(bytes_, ceil_div(len + each.count, block_) - ceil_div(len, block_));
    }
  }

  const int64_t bytes_, block_;
  std::vector<int64_t> len_;
};

// How a SlidingLayer is cut.
struct Ring {
  int64_t token_bytes, capacity, page;
  bool bounded;  // takes all pages at once
};

class SlidingCounts final : public LayerCounts {
 public:
  explicit SlidingCounts(const Ring& ring) : ring_(ring) {}
  void commit(std::span<const RowStep> step) override {
    for (const RowStep& each : step) row_at(rows_, each).len += each.count;
  }

 private:
  struct Row {
    int64_t len = 0, pages = 0;
  };

  void reserve_blocks(std::span<const RowStep> step) override {
    int64_t tokens = 0;
    for (const RowStep& each : step) tokens += each.count;
    const int64_t bytes = checked_mul(tokens, ring_.token_bytes);
    if (step_ != bytes) give(std::exchange(step_, 0));
    for (const RowStep& each : step) {
      if (each.count == 0 || ring_.capacity == 0) continue;
      Row& row = row_at(rows_, each);
      const int64_t slots =
          ring_.bounded ? ring_.capacity : std::min(row.len + each.count, ring_.capacity);
      for (; row.pages < ceil_div(slots, ring_.page); ++row.pages)
        take(ring_.token_bytes * std::min(ring_.page, ring_.capacity - row.pages * ring_.page));
    }
    if (step_ == 0) take(step_ = bytes);
  }

  const Ring ring_;
  std::vector<Row> rows_;
  int64_t step_ = 0;  // bytes of the block of the step's tokens
};

// What a LarderQuantizedLayer is made of.
struct Coded {
  int64_t coded_bytes, exact_bytes;  // of a block
  int64_t residual_length, window, rollback;
};

class CodedCounts final : public LayerCounts {
 public:
  explicit CodedCounts(const Coded& layer) : layer_(layer) {}

  void commit(std::span<const RowStep> step) override {
    for (const RowStep& each : step) {
      Row& row = row_at(rows_, each);
      const int64_t old_len = row.len;
      row.len += each.count;
      for (; row.prepared > 0; --row.prepared) {
        if (row.coded_end() == old_len / kBlock && old_len % kBlock != 0)
          row.cut = true;
        else
          give(layer_.exact_bytes);
        ++row.coded, --row.exact;
      }
    }
  }
  int64_t step_limit(int32_t row) const override {
    const Row none,
        &at = static_cast<size_t>(row) < rows_.size() ? rows_[static_cast<size_t>(row)] : none;
    return kBlock * (at.coded_end() + 1) + layer_.residual_length - at.len;
  }

 private:
  struct Row {
    int64_t coded = 0, exact = 0, prepared = 0;  // blocks
    int64_t first_block = 0, len = 0;
    bool cut = false;  // keeps the exact block that a cancelled step would need again

    int64_t coded_end() const { return first_block + coded; }
  };

  void reserve_blocks(std::span<const RowStep> step) override {
    for (const RowStep& each : step) {
      Row& row = row_at(rows_, each);
      drop_behind_window(row);
      if (std::exchange(row.cut, false)) give(layer_.exact_bytes);
      if (each.count == 0) continue;
      const int64_t len = row.len + each.count;
      const int64_t need = ceil_div(len, kBlock) - row.coded_end();
      take(layer_.exact_bytes, std::max<int64_t>(0, need - row.exact));
      row.exact = std::max(row.exact, need);
      const int64_t due = std::max<int64_t>(0, len - layer_.residual_length) / kBlock;
      row.prepared = std::max<int64_t>(0, due - row.coded_end());
      take(layer_.coded_bytes, row.prepared);
    }
  }

  void drop_behind_window(Row& row) {
    if (layer_.window == 0) return;
    const int64_t needed = row.len - layer_.window + 1 - layer_.rollback;
    for (; kBlock * (row.first_block + 1) <= needed && row.coded + row.exact > 0;
         ++row.first_block) {
      give(row.coded > 0 ? layer_.coded_bytes : layer_.exact_bytes);
      --(row.coded > 0 ? row.coded : row.exact);
    }
  }

  const Coded layer_;
  std::vector<Row> rows_;
};

int64_t token_bytes(const LayerSpec& spec, const CacheOptions& options) {
  return checked_mul(checked_mul(spec.num_kv_heads, spec.head_dim),
                     2 * static_cast<int64_t>(dtype_size(options.dtype)));
}

std::unique_ptr<LayerCounts> dynamic_counts(const LayerSpec& spec, const CacheOptions& options,
                                            bool full = false) {
  const int64_t bytes = token_bytes(spec, options);
  if (full || spec.window == 0) return std::make_unique<DenseCounts>(bytes, kBlock);
  const int64_t capacity =
      std::min<int64_t>(checked_add(spec.window - 1, options.rollback), INT32_MAX);
  return std::make_unique<SlidingCounts>(Ring{bytes, capacity, kBlock, false});
}

std::unique_ptr<LayerCounts> fixed_counts(const LayerSpec& spec, const CacheOptions& options) {
  const int64_t bytes = token_bytes(spec, options), most = options.max_cache_len;
  if (spec.window == 0) return std::make_unique<DenseCounts>(bytes, most);
  const int64_t capacity = std::min(checked_add(spec.window, options.rollback), most);
  return std::make_unique<SlidingCounts>(Ring{bytes, capacity, capacity, true});
}

// Equal layers share what counts them: those of one window whose coded blocks are of one size.
class Maker {
 public:
  Maker(std::string_view kind, const CacheOptions& options) : kind_(kind), options_(options) {}

  CacheCounts counts(std::span<const LayerSpec> specs) {
    HostAllocator host;
    const CacheMemory memory{std::make_shared<MemoryBlocks>(host), host};
    const auto layers = CacheRegistry().make_layers(kind_, specs, options_, memory);
    if (kind_.starts_with("offloaded")) return inner_counts(specs);
    const bool quantized = kind_ == "quantized";
    const bool coded = quantized && !count_quantized(*layers.at(0));
    LarderQuantizedConfig config;
    if (coded) config = read_larder_quantized_config(options_.config, specs);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (coded)
        add_coded(specs[i], config, i);
      else if (quantized)
        add({}, [&] { return count_quantized(*layers[i]); });
      else
        add({specs[i].window, 0}, [&] { return exact_counts(specs[i]); });
    }
    return std::move(made_);
  }

 private:
  std::unique_ptr<LayerCounts> exact_counts(const LayerSpec& spec) const {
    if (kind_ == "dynamic" || kind_ == "dynamic_full")
      return dynamic_counts(spec, options_, kind_ == "dynamic_full");
    if (CacheRegistry().find(kind_).needs_max_cache_len) return fixed_counts(spec, options_);
    fail_as(ErrorKind::kUnsupported, "no plan for the cache ", in_quotes(kind_));
  }

  // What was offloaded, by the settings that the offloaded kinds have.
  CacheCounts inner_counts(std::span<const LayerSpec> specs) const {
    std::string inner = kind_ == "offloaded" ? "dynamic" : kind_.substr(sizeof "offloaded");
    CacheOptions options = options_;
    options.config.clear();
    if (!options_.config.empty()) {
      const Json json = parse_json(options_.config, "cache_config");
      const JsonFields fields(json, "cache_config");
      inner = fields.string("cache").value_or(inner);
      if (const Json* given = fields.object("cache_config")) options.config = given->dump();
    }
    CacheCounts counts = Maker(inner, options).counts(specs);
    counts.offloaded = true;
    return counts;
  }

  void add_coded(const LayerSpec& spec, const LarderQuantizedConfig& config, size_t layer) {
    const CodeRecipe &key = config.key[layer], &value = config.value[layer];
    if (key.bits == CodeRecipe::kExact && value.bits == CodeRecipe::kExact)
      return add({spec.window, 0}, [&] { return dynamic_counts(spec, options_); });
    const int64_t bytes = CodedBlock(spec, options_.dtype, key, value).bytes();
    const int64_t exact_bytes = token_bytes(spec, options_) * kCodedBlock;
    add({spec.window, bytes}, [&] {
      return std::make_unique<CodedCounts>(
          Coded{bytes, exact_bytes, config.residual_length, spec.window, options_.rollback});
    });
  }

  using Alike = std::pair<int64_t, int64_t>;  // window, bytes of a coded block
  template <class Make>
  void add(const Alike& alike, const Make& make) {
    const auto [at, fresh] = known_.emplace(alike, made_.kinds.size());
    if (fresh) made_.kinds.push_back(make());
    made_.kind_of_layer.push_back(at->second);
  }

  const std::string kind_;
  const CacheOptions options_;
  std::map<Alike, size_t> known_;
  CacheCounts made_;
};

}  // namespace

CacheCounts count_layers(std::string_view name, std::span<const LayerSpec> specs,
                         const CacheOptions& options) {
  return Maker(name, options).counts(specs);
}

}  // namespace larder
