// Kinds that are made of another kind's layers ("offloaded", "encoder_decoder"): which other one.
#pragma once

#include <initializer_list>
#include <string_view>

#include "larder/cache/registry.h"

namespace larder {

struct InnerKind {
  CacheKind kind;
  CacheOptions options;  // the outer kind's, but for the settings, which are the inner kind's own
};

// From the outer kind's settings "cache", the inner kind's name (`by_default` when absent), and
// "cache_config", an object. Refuses settings that are neither these nor in `own`, the outer kind
// itself, an unknown one, and options that the inner one cannot have.
InnerKind read_inner_kind(std::string_view outer, std::string_view by_default,
                          const CacheOptions& options,
                          std::initializer_list<std::string_view> own = {});

}  // namespace larder
