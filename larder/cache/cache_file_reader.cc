// Reading cache files.
#include <algorithm>
#include <cstring>

#include "larder/base/checksum.h"
#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/cache_file.h"
#include "larder/cache/cache_file_names.h"

namespace larder {

using namespace cache_file;

template <class... Parts>
void CacheFile::refuse(const Parts&... parts) const {
  fail("cache file ", name_, ": ", parts...);
}

CacheFile::CacheFile(const std::filesystem::path& path) : name_(path.string()), file_(path) {
  check_version();
  check_sums();
  read_rows();
}

void CacheFile::load(Cache& cache, const CacheOrigin& origin) const {
  check_origin(origin);
  check_formats(cache);
  size_t used = tokens_.size() + 1;  // tensors that have found their place; checksums have
  std::vector<std::unique_ptr<Change>> changes;
  for (int32_t i = 0; i < cache.num_layers(); ++i)
    changes.push_back(prepare("layer", i, cache.layer(i), own_len_, used));
  for (int32_t i = 0; i < cache.num_cross(); ++i)
    changes.push_back(
        prepare("cross", i, cache.cross(i), cross_len_[static_cast<size_t>(i)], used));
  if (used != file_.tensors().size()) refuse("it holds tensors that no layer keeps");
  for (const auto& change : changes) change->apply();
}

const std::string& CacheFile::meta(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  if (found == file_.metadata().end())
    refuse("it has no ", in_quotes(key), " in its metadata; was it made by --save-cache?");
  return found->second;
}

void CacheFile::check_version() const {
  if (meta(kFormat) != kFormatName)
    refuse("its ", kFormat, " is ", in_quotes(meta(kFormat)), ", not ", in_quotes(kFormatName));
  if (meta(kVersion) != kVersionNow) {
    refuse("it has version ", in_quotes(meta(kVersion)), ", this larder reads version ",
           kVersionNow, "; make the file anew");
  }
}

void CacheFile::check_sums() const {
  const auto& tensors = file_.tensors();
  if (tensors.empty() || tensors.back().name != kChecksums || tensors.back().dtype != DType::kU8 ||
      tensors.back().bytes != 8 * tensors.size())
    refuse("it does not end with one checksum for each tensor");
  const auto is_right = [&](size_t index, std::span<const std::byte> bytes) {
    const uint64_t sum[] = {checksum64(bytes)};
    const std::vector<std::byte> right = bytes_of(sum);
    return std::equal(right.begin(), right.end(), tensors.back().data + 8 * index);
  };
  if (!is_right(0, file_.header())) refuse("the checksum of its header does not match");
  for (size_t i = 0; i + 1 < tensors.size(); ++i) {
    if (!is_right(i + 1, {tensors[i].data, tensors[i].bytes}))
      refuse("the checksum of tensor ", in_quotes(tensors[i].name), " does not match");
  }
}

void CacheFile::check_origin(const CacheOrigin& origin) const {
  const Json theirs = parse_json(meta("config"), name_), ours = parse_json(origin.config, "");
  if (!theirs.is_object()) refuse("its config is no JSON object");
  const auto text = [](const Json& config, const std::string& key) {
    return config.contains(key) ? config.at(key).dump() : std::string("absent");
  };
  Json both = theirs;
  both.update(ours);
  for (const auto& [key, value] : both.items()) {
    if (text(theirs, key) != text(ours, key)) {
      refuse("it comes from another model: ", key, " is ", text(theirs, key), " in the file, but ",
             text(ours, key), " in config.json");
    }
  }
  if (meta("weights") != origin.weights) {
    refuse("it comes from a model with other weights (fingerprint ", meta("weights"), ", not ",
           origin.weights, ")");
  }
  if (meta("dtype") != origin.dtype) {
    refuse("it was made with --dtype ", meta("dtype"), ", but the model runs in ", origin.dtype);
  }
}

void CacheFile::check_formats(Cache& cache) const {
  const auto check = [&](const std::string& key, int32_t count, auto format) {
    const Json formats = parse_json(meta(key), name_);
    if (!formats.is_array() || formats.size() != static_cast<size_t>(count))
      refuse("it has ", formats.size(), " ", key, ", the cache has ", count);
    for (int32_t i = 0; i < count; ++i) {
      const Json& theirs = formats[static_cast<size_t>(i)];
      if (theirs != Json(format(i))) {
        refuse("layer ", i, " of ", key, " is stored as ", theirs.dump(), ", but this cache keeps ",
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
  const Json rows = parse_json(meta("rows"), name_);
  if (!rows.is_array()) refuse("its rows are no list");
  const auto length = [&](const Json& value) {
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX)
      refuse("a row of ", value.dump(), " tokens");
    return value.get<int64_t>();
  };
  const Json cross = parse_json(meta("cross_layers"), name_);
  cross_len_.resize(cross.is_array() ? cross.size() : 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    const Json& row = rows[r];
    if (!row.is_object() || !row.contains("seq_len") || !row.contains("cross") ||
        !row["cross"].is_array() || row["cross"].size() != cross_len_.size())
      refuse("row ", r, " is not described as this version does");
    own_len_.push_back(length(row["seq_len"]));
    for (size_t i = 0; i < cross_len_.size(); ++i) cross_len_[i].push_back(length(row["cross"][i]));
    read_tokens(r);
  }
}

void CacheFile::read_tokens(size_t row) {
  const StoredTensor* tensor = file_.find(row_name(row) + kTokens);
  if (tensor == nullptr || tensor->dtype != DType::kI32 || tensor->shape.size() != 1 ||
      tensor->shape[0] < own_len_[row])
    refuse("row ", row, " has no list of its ", own_len_[row], " tokens or more");
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
    for (const StoredTensor& tensor : file_.tensors()) {
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
    fail_as(error.kind(), "cache file ", name_, ": ", part, " ", index, ": ", error.what());
  }
}

}  // namespace larder
