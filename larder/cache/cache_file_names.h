// What the writer and the reader of cache files share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "larder/cache/sealed_file.h"

namespace larder::cache_file {

inline constexpr SealedFormat kCacheFile{"cache file", "kv-cache", "1", "--save-cache"};
inline constexpr const char* kTokens = "tokens";

std::string row_name(size_t row);                             // "row.0."
std::string part_name(std::string_view part, int32_t index);  // "layer.3."

}  // namespace larder::cache_file
