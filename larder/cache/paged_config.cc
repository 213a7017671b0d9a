#include "larder/cache/paged_config.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/base/json.h"

namespace larder {
namespace {

constexpr const char* kWhat = "cache_config";
constexpr const char* kKeys[] = {"block_size", "num_blocks", "num_exact_blocks",
                                 "pool_bytes", "pool_share", "quantized"};
constexpr int32_t kMostBlockSize = 256;
constexpr int64_t kDefaultTokens = 4096;  // of a pool whose size nobody gave

void refuse_unknown(const Json& config) {
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(kKeys, key) == std::end(kKeys)) {
      fail(kWhat, ": the cache \"paged\" has no setting ", in_quotes(key),
           "; there are: ", join(kKeys, ", "));
    }
  }
}

std::optional<int64_t> positive(const JsonFields& fields, const char* key) {
  const auto value = fields.integer(key);
  if (value && *value < 1) fail(kWhat, ": ", key, " ", *value, " must be at least 1");
  return value;
}

void read_size(const JsonFields& fields, const CacheOptions& options, PagedConfig& config) {
  const auto blocks = positive(fields, "num_blocks");
  config.pool_bytes = positive(fields, "pool_bytes");
  config.pool_share = fields.number("pool_share");
  if (blocks.has_value() + config.pool_bytes.has_value() + config.pool_share.has_value() > 1)
    fail(kWhat, ": give one of num_blocks, pool_bytes and pool_share");
  if (config.pool_share && !(*config.pool_share > 0 && *config.pool_share <= 1))
    fail(kWhat, ": pool_share ", *config.pool_share, " must be above 0 and at most 1");
  if (config.pool_bytes || config.pool_share) return;
  const int64_t tokens = std::max(options.max_cache_len, kDefaultTokens);
  config.num_blocks = blocks.value_or(ceil_div(tokens, config.block_size));
}

void read_quantized(const JsonFields& fields, std::span<const LayerSpec> specs,
                    PagedConfig& config) {
  const Json* given = fields.object("quantized");
  if (given == nullptr) {
    if (fields.has("num_exact_blocks"))
      fail(kWhat, ": num_exact_blocks belongs to a pool with quantized blocks");
    return;
  }
  const Json* backend = JsonFields(*given, "cache_config.quantized").find("backend");
  if (backend != nullptr && *backend != "larder") {
    fail(kWhat, ": paged blocks are quantized by the backend \"larder\" alone, not ",
         describe(*backend));
  }
  config.quantized = read_larder_quantized_config(given->dump(), specs);
  config.block_size = kCodedBlock;
  if (const auto size = fields.integer("block_size"); size && *size != kCodedBlock) {
    fail(kWhat, ": block_size ", *size, " with quantized blocks, which have ", kCodedBlock,
         " tokens, the range that keys per channel are grouped over");
  }
}

}  // namespace

PagedConfig read_paged_config(const CacheOptions& options, std::span<const LayerSpec> specs) {
  const Json json = options.config.empty() ? Json::object() : parse_json(options.config, kWhat);
  const JsonFields fields(json, kWhat);
  refuse_unknown(json);
  PagedConfig config;
  const int64_t block_size = fields.integer("block_size").value_or(config.block_size);
  if (block_size < 1 || block_size > kMostBlockSize)
    fail(kWhat, ": block_size ", block_size, " must be 1 to ", kMostBlockSize);
  config.block_size = static_cast<int32_t>(block_size);
  read_quantized(fields, specs, config);
  read_size(fields, options, config);
  config.num_exact_blocks = positive(fields, "num_exact_blocks").value_or(0);
  return config;
}

}  // namespace larder
