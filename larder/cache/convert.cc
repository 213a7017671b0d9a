#include "larder/cache/convert.h"

#include "larder/base/error.h"
#include "larder/cache/rows.h"

namespace larder {
namespace {

void check_conversion(const KVLayer& from, const KVLayer& to) {
  for (int32_t row = 0; row < from.batch(); ++row)
    to.check_assign(from.seq_len(row) - from.kept_len(row), from.seq_len(row));
}

}  // namespace

void convert_layer(const KVLayer& from, KVLayer& to, Allocator& allocator) {
  check_conversion(from, to);
  std::vector<TokenTensors> read;
  std::vector<RowTokens> rows;
  read.reserve(static_cast<size_t>(from.batch()));
  rows.reserve(read.capacity());
  for (int32_t row = 0; row < from.batch(); ++row)
    read.push_back(read_tokens(from, row, allocator, "convert"));
  for (int32_t row = 0; row < from.batch(); ++row) {
    const TokenTensors& tokens = read[static_cast<size_t>(row)];
    rows.push_back({from.seq_len(row) - from.kept_len(row), tokens.k, tokens.v});
  }
  to.assign(rows)->apply();
}

void convert_cache(Cache& cache, std::string_view kind, const CacheOptions& options,
                   const CacheRegistry& registry, Allocator& allocator) {
  std::vector<int32_t> index;
  std::vector<LayerSpec> specs;
  for (int32_t i = 0; i < cache.num_layers(); ++i) {
    if (cache.layer(i).as_kv() == nullptr) continue;
    index.push_back(i);
    specs.push_back(cache.layer(i).spec());
  }
  auto made = registry.make_layers(kind, specs, options,
                                   {std::make_shared<MemoryBlocks>(allocator), allocator});
  for (size_t n = 0; n < made.size(); ++n) {
    KVLayer* to = made[n]->as_kv();
    LARDER_ASSERT(to != nullptr);
    check_conversion(cache.kv(index[n]), *to);
  }
  for (size_t n = 0; n < made.size(); ++n) {
    convert_layer(cache.kv(index[n]), *made[n]->as_kv(), allocator);
    cache.replace_layer(index[n], std::move(made[n]));
  }
}

}  // namespace larder
