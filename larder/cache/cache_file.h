// A cache in a file: a safetensors file that any reader opens, and that is loaded whole or not at
// all. docs/caches.md describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "larder/cache/cache.h"
#include "larder/cache/sealed_file.h"

namespace larder {

// Writes every row of the cache, in the layers' own formats, with the row's token ids (one list a
// row; the cache holds the first seq_len of them, and may lack the last ones, which were not fed
// yet). Takes memory (tag "save") for one row of one layer at a time. Atomic: on any error an old
// file at `path` is as it was.
void save_cache(const std::filesystem::path& path, const Cache& cache,
                std::span<const std::vector<int32_t>> tokens, const CacheOrigin& origin,
                Allocator& allocator);

// An open cache file whose own parts are all checked: version, checksums, lengths.
class CacheFile {
 public:
  // Refuses a damaged file, one of another version, and one that is no cache.
  explicit CacheFile(const std::filesystem::path& path);

  // Of each row.
  const std::vector<std::vector<int32_t>>& tokens() const { return tokens_; }
  // Makes `cache` hold the file's rows and no others. Refuses another model, another kind or dtype
  // of cache, too small a capacity, with what differs; the cache is then as it was.
  void load(Cache& cache, const CacheOrigin& origin) const;

 private:
  void check_formats(Cache& cache) const;
  void read_rows();
  void read_tokens(size_t row);
  std::unique_ptr<Change> prepare(std::string_view part, int32_t index, CacheLayer& layer,
                                  const std::vector<int64_t>& lens, size_t& used) const;

  SealedFile sealed_;
  std::vector<int64_t> own_len_;
  std::vector<std::vector<int64_t>> cross_len_;  // by cross layer, then row
  std::vector<std::vector<int32_t>> tokens_;
};

}  // namespace larder
