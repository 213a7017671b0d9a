// Reading cache files.
#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/cache_file.h"
#include "larder/cache/cache_file_names.h"

namespace larder {

using namespace cache_file;

CacheFile::CacheFile(const std::filesystem::path& path) : sealed_(path, kCacheFile) { read_rows(); }

void CacheFile::load(Cache& cache, const CacheOrigin& origin) const {
  sealed_.check_origin(origin);
  check_formats(cache);
  size_t used = tokens_.size() + 1;  // tensors that have found their place; checksums have
  std::vector<std::unique_ptr<Change>> changes;
  changes.reserve(static_cast<size_t>(cache.num_layers()) + static_cast<size_t>(cache.num_cross()));
  for (int32_t i = 0; i < cache.num_layers(); ++i)
    changes.push_back(prepare("layer", i, cache.layer(i), own_len_, used));
  for (int32_t i = 0; i < cache.num_cross(); ++i)
    changes.push_back(
        prepare("cross", i, cache.cross(i), cross_len_[static_cast<size_t>(i)], used));
  if (used != sealed_.file().tensors().size())
    sealed_.refuse("it holds tensors that no layer keeps");
  for (const auto& change : changes) change->apply();
}

void CacheFile::check_formats(Cache& cache) const {
  const auto check = [&](const std::string& key, int32_t count, auto format) {
    const Json formats = parse_json(sealed_.meta(key), sealed_.name());
    if (!formats.is_array() || formats.size() != static_cast<size_t>(count))
      sealed_.refuse("it has ", formats.size(), " ", key, ", the cache has ", count);
    for (int32_t i = 0; i < count; ++i) {
      const Json& theirs = formats[static_cast<size_t>(i)];
      if (theirs != Json(format(i))) {
        sealed_.refuse(
            "layer ", i, " of ", key, " is stored as ", theirs.dump(), ", but this cache keeps ",
            in_quotes(format(i)),
            "; give the --cache, --cache-config and --cache-dtype that it was saved with");
      }
    }
  };
  check("layers", cache.num_layers(), [&](int32_t i) { return cache.layer(i).format(); });
  check("cross_layers", cache.num_cross(), [&](int32_t i) { return cache.cross(i).format(); });
}

// Lengths and tokens of the rows.
void CacheFile::read_rows() {
  const Json rows = parse_json(sealed_.meta("rows"), sealed_.name());
  if (!rows.is_array()) sealed_.refuse("its rows are no list");
  const auto length = [&](const Json& value) {
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX)
      sealed_.refuse("a row of ", value.dump(), " tokens");
    return value.get<int64_t>();
  };
  const Json cross = parse_json(sealed_.meta("cross_layers"), sealed_.name());
  cross_len_.resize(cross.is_array() ? cross.size() : 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    const Json& row = rows[r];
    if (!row.is_object() || !row.contains("seq_len") || !row.contains("cross") ||
        !row["cross"].is_array() || row["cross"].size() != cross_len_.size())
      sealed_.refuse("row ", r, " is not described as this version does");
    own_len_.push_back(length(row["seq_len"]));
    for (size_t i = 0; i < cross_len_.size(); ++i) cross_len_[i].push_back(length(row["cross"][i]));
    read_tokens(r);
  }
}

void CacheFile::read_tokens(size_t row) {
  const StoredTensor* tensor = sealed_.file().find(row_name(row) + kTokens);
  if (tensor == nullptr || tensor->dtype != DType::kI32 || tensor->shape.size() != 1 ||
      tensor->shape[0] < own_len_[row])
    sealed_.refuse("row ", row, " has no list of its ", own_len_[row], " tokens or more");
  std::vector<int32_t> ids(tensor->bytes / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), tensor->data, tensor->bytes);
  tokens_.push_back(std::move(ids));
}

// The tensors of one layer, given to it.
std::unique_ptr<Change> CacheFile::prepare(std::string_view part, int32_t index, CacheLayer& layer,
                                           const std::vector<int64_t>& lens, size_t& used) const {
  std::vector<RowImageView> images;
  for (size_t row = 0; row < lens.size(); ++row) {
    const std::string prefix = row_name(row) + part_name(part, index);
    RowImageView image{lens[row], {}};
    for (const StoredTensor& tensor : sealed_.file().tensors()) {
      if (!tensor.name.starts_with(prefix)) continue;
      image.tensors.push_back({std::string_view(tensor.name).substr(prefix.size()), tensor.view()});
      ++used;
    }
    images.push_back(std::move(image));
  }
  try {
    return layer.load(images);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {
    fail_as(error.kind(), "cache file ", sealed_.name(), ": ", part, " ", index, ": ",
            error.what());
  }
}

}  // namespace larder
