// Cached prefixes in a file, so that the next run finds them.
#pragma once

#include <filesystem>

#include "larder/cache/prefix_cache.h"
#include "larder/cache/sealed_file.h"

namespace larder {

// The name for a file of these prefixes: it differs by model, dtype, block size and layout, so one
// folder serves many.
std::string prefix_file_name(const PrefixCache& prefixes, const CacheOrigin& origin);

// Writes the prefixes without a salt; those of salts stay between their tenants. Atomic: on any
// error an old file at `path` is as it was. Gives the number of entries; with none it writes no
// file.
int64_t save_prefixes(const std::filesystem::path& path, PrefixCache& prefixes,
                      const CacheOrigin& origin);

// Adds a file's prefixes, those used last first, as far as the pool has free blocks. Refuses a
// damaged file, another model and another layout, with what differs; nothing has changed then.
// Gives the number of entries that are there now.
int64_t load_prefixes(const std::filesystem::path& path, PrefixCache& prefixes,
                      const CacheOrigin& origin);

}  // namespace larder
