// Which counts the layers of each cache kind have.
#include <algorithm>
#include <map>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/inner_kind.h"
#include "larder/cache/larder_quantized_config.h"
#include "larder/cache/paged_pool.h"
#include "larder/cache/registry.h"
#include "larder/models/kv_counts.h"

namespace larder {
namespace {

int64_t token_bytes(const LayerSpec& spec, const CacheOptions& options) {
  return checked_mul(checked_mul(spec.num_kv_heads, spec.head_dim),
                     2 * static_cast<int64_t>(dtype_size(options.dtype)));
}

std::unique_ptr<LayerCounts> dynamic_counts(const LayerSpec& spec, const CacheOptions& options,
                                            bool full = false) {
  const int64_t bytes = token_bytes(spec, options);
  if (full || spec.window == 0) return count_dense({bytes, kGrowingBlock});
  const int64_t capacity =
      std::min<int64_t>(checked_add(spec.window - 1, options.rollback), INT32_MAX);
  return count_ring({bytes, capacity, kGrowingBlock, false});
}

std::unique_ptr<LayerCounts> fixed_counts(const LayerSpec& spec, const CacheOptions& options) {
  const int64_t bytes = token_bytes(spec, options), most = options.max_cache_len;
  if (spec.window == 0) return count_dense({bytes, most});
  const int64_t capacity = std::min(checked_add(spec.window, options.rollback), most);
  return count_ring({bytes, capacity, capacity, true});
}

std::unique_ptr<LayerCounts> coded_counts(const LayerSpec& spec, const CacheOptions& options,
                                          const LarderQuantizedConfig& config, size_t layer) {
  const CodedBlock block(spec, options.dtype, config.key[layer], config.value[layer]);
  return count_coded({block.bytes(), token_bytes(spec, options) * kCodedBlock,
                      config.residual_length, spec.window, options.rollback});
}

// A pool that nobody gave a size holds the rows.
CacheCounts count_paged(std::span<const LayerSpec> specs, CacheOptions options,
                        const CountedRows& rows) {
  const int64_t block_size = read_paged_config(options, specs).block_size;
  options.max_cache_len = checked_mul(rows.batch, ceil_div(rows.tokens, block_size) * block_size);
  const HostAllocator unlimited;
  const PagedPool pool = plan_paged_pool(options, specs, unlimited);
  CacheCounts counts;
  counts.pool = std::make_unique<PoolCounts>(pool.sizes);
  for (size_t i = 0; i < specs.size(); ++i) {
    counts.kind_of_layer.push_back(i);
    counts.kinds.push_back(pool.config.quantized
                               ? coded_counts(specs[i], options, *pool.config.quantized, i)
                               : count_dense({token_bytes(specs[i], options), block_size,
                                              specs[i].window, options.rollback}));
    counts.kinds.back()->draw_from(*counts.pool);
  }
  return counts;
}

// Of attention layers. Equal ones share what counts them: those of one window whose coded blocks
// are of one size.
class Maker {
 public:
  Maker(const CacheKind& kind, const CacheOptions& options, const CountedRows& rows)
      : kind_(kind), options_(options), rows_(rows) {
    options_.max_cache_len = rows.tokens;
    check_options(kind_, options_);
  }

  CacheCounts counts(std::span<const LayerSpec> specs) {
    if (kind_.name == "encoder_decoder")
      return counts_of(read_inner_kind(kind_.name, "dynamic", options_), specs);
    if (kind_.has_own_pool && !specs.empty()) return count_paged(specs, options_, rows_);
    HostAllocator host;
    const CacheMemory memory{std::make_shared<MemoryBlocks>(host), host};
    const auto layers = CacheRegistry().make_layers(kind_.name, specs, options_, memory);
    if (kind_.name.starts_with("offloaded")) return offloaded_counts(specs);
    const bool quantized = kind_.name == "quantized";
    const bool coded = quantized && !specs.empty() && !count_quantized(*layers[0]);
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
    for (const char* name : {"dynamic", "dynamic_full", "mamba", "recurrent"})
      if (kind_.name == name) return dynamic_counts(spec, options_, kind_.name == "dynamic_full");
    if (kind_.needs_max_cache_len) return fixed_counts(spec, options_);
    fail_as(ErrorKind::kUnsupported, "no plan for the cache ", in_quotes(kind_.name));
  }

  CacheCounts counts_of(const InnerKind& inner, std::span<const LayerSpec> specs) const {
    return Maker(inner.kind, inner.options, rows_).counts(specs);
  }

  CacheCounts offloaded_counts(std::span<const LayerSpec> specs) const {
    const std::string by_default =
        kind_.name == "offloaded" ? "dynamic" : kind_.name.substr(sizeof "offloaded");
    CacheCounts counts =
        counts_of(read_inner_kind(kind_.name, by_default, options_, {"folder"}), specs);
    counts.offloaded = true;
    return counts;
  }

  void add_coded(const LayerSpec& spec, const LarderQuantizedConfig& config, size_t layer) {
    const CodeRecipe &key = config.key[layer], &value = config.value[layer];
    if (key.bits == CodeRecipe::kExact && value.bits == CodeRecipe::kExact)
      return add({spec.window, 0}, [&] { return dynamic_counts(spec, options_); });
    const int64_t bytes = CodedBlock(spec, options_.dtype, key, value).bytes();
    add({spec.window, bytes}, [&] { return coded_counts(spec, options_, config, layer); });
  }

  using Alike = std::pair<int64_t, int64_t>;  // window, bytes of a coded block
  template <class Make>
  void add(const Alike& alike, const Make& make) {
    const auto [at, fresh] = known_.emplace(alike, made_.kinds.size());
    if (fresh) made_.kinds.push_back(make());
    made_.kind_of_layer.push_back(at->second);
  }

  const CacheKind kind_;
  CacheOptions options_;
  const CountedRows rows_;
  std::map<Alike, size_t> known_;
  CacheCounts made_;
};

int64_t state_bytes(const LayerSpec& spec) {
  const int64_t floats =
      checked_add(checked_mul(spec.conv_channels, spec.conv_kernel), spec.state_size);
  return checked_mul(floats, 2 * static_cast<int64_t>(sizeof(float)));  // before and after a step
}

}  // namespace

CacheCounts count_layers(std::string_view name, std::span<const LayerSpec> specs,
                         const CacheOptions& options, const CountedRows& rows) {
  std::vector<LayerSpec> attention;
  std::vector<CacheCounts::State> states;
  int64_t cross_bytes = 0;  // a token
  for (const LayerSpec& spec : specs) {
    if (spec.kind == LayerKind::kAttention) attention.push_back(spec);
    if (spec.kind == LayerKind::kState) states.push_back({attention.size(), state_bytes(spec)});
    if (spec.kind == LayerKind::kCross)
      cross_bytes = checked_add(cross_bytes, token_bytes(spec, options));
  }
  CacheCounts counts = Maker(CacheRegistry().find(name), options, rows).counts(attention);
  counts.states = std::move(states);
  counts.cross_block_bytes = checked_mul(cross_bytes, kGrowingBlock);
  return counts;
}

}  // namespace larder
