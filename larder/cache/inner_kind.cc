#include "larder/cache/inner_kind.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/base/json.h"

namespace larder {

InnerKind read_inner_kind(std::string_view outer, std::string_view by_default,
                          const CacheOptions& options,
                          std::initializer_list<std::string_view> own) {
  InnerKind inner;
  inner.options = options;
  inner.options.config.clear();
  const Json json =
      options.config.empty() ? Json::object() : parse_json(options.config, "cache_config");
  const JsonFields fields(json, "cache_config");
  std::vector<std::string_view> known(own);
  known.insert(known.end(), {"cache", "cache_config"});
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) == known.end()) {
      fail("cache_config: the cache ", in_quotes(outer), " has no setting ", in_quotes(key),
           "; there are: ", join(known, ", "));
    }
  }
  inner.kind = CacheRegistry().find(fields.string("cache").value_or(std::string(by_default)));
  if (inner.kind.name == outer) fail("cache_config: cache ", in_quotes(outer), " within itself");
  if (const Json* given = fields.object("cache_config")) inner.options.config = given->dump();
  check_options(inner.kind, inner.options);
  return inner;
}

}  // namespace larder
