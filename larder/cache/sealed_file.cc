#include "larder/cache/sealed_file.h"

#include <algorithm>
#include <utility>

#include "larder/base/checksum.h"
#include "larder/base/json.h"

namespace larder {
namespace {

constexpr const char* kFormat = "larder.format";
constexpr const char* kVersion = "larder.version";
// Of the header and of each tensor in the order of the file, little-endian; the last tensor.
constexpr const char* kChecksums = "checksums";

std::vector<std::byte> bytes_of(std::span<const uint64_t> numbers) {
  std::vector<std::byte> bytes;
  for (const uint64_t number : numbers) {
    for (int shift = 0; shift < 64; shift += 8)
      bytes.push_back(static_cast<std::byte>(number >> shift));
  }
  return bytes;
}

std::vector<TensorToWrite> with_checksums(std::vector<TensorToWrite> tensors) {
  const auto count = static_cast<int64_t>(tensors.size()) + 1;
  tensors.push_back({kChecksums, DType::kU8, {count * 8}, nullptr});
  return tensors;
}

std::map<std::string, std::string> with_origin(std::map<std::string, std::string> metadata,
                                               const SealedFormat& format,
                                               const CacheOrigin& origin) {
  metadata.insert({{kFormat, format.name},
                   {kVersion, format.version},
                   {"config", origin.config},
                   {"weights", origin.weights},
                   {"dtype", origin.dtype}});
  return metadata;
}

}  // namespace

SealedFile::SealedFile(const std::filesystem::path& path, const SealedFormat& format)
    : format_(format), name_(path.string()), file_(path) {
  check_version();
  check_sums();
}

const std::string& SealedFile::meta(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  if (found == file_.metadata().end())
    refuse("it has no ", in_quotes(key), " in its metadata; was it made by ", format_.maker, "?");
  return found->second;
}

void SealedFile::check_version() const {
  if (meta(kFormat) != format_.name)
    refuse("its ", kFormat, " is ", in_quotes(meta(kFormat)), ", not ", in_quotes(format_.name));
  if (meta(kVersion) != format_.version) {
    refuse("it has version ", in_quotes(meta(kVersion)), ", this larder reads version ",
           format_.version, "; make the file anew");
  }
}

void SealedFile::check_sums() const {
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

void SealedFile::check_origin(const CacheOrigin& origin) const {
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

SealedStream::SealedStream(const std::filesystem::path& path, const SealedFormat& format,
                           std::vector<TensorToWrite> tensors, const CacheOrigin& origin,
                           std::map<std::string, std::string> metadata)
    : tensors_(with_checksums(std::move(tensors))),
      stream_(path, tensors_, with_origin(std::move(metadata), format, origin)) {
  checksums_.push_back(checksum64(stream_.header()));
}

void SealedStream::write(const TensorToWrite& tensor) {
  const TensorToWrite& planned = tensors_[checksums_.size() - 1];
  LARDER_ASSERT(planned.name == tensor.name && planned.shape == tensor.shape);
  const auto bytes = static_cast<size_t>(Shape(tensor.shape).count()) * dtype_size(tensor.dtype);
  checksums_.push_back(checksum64({static_cast<const std::byte*>(tensor.data), bytes}));
  stream_.write(tensor.data, bytes);
}

void SealedStream::commit() {
  const std::vector<std::byte> sums = bytes_of(checksums_);
  stream_.write(sums.data(), sums.size());
  stream_.commit();
}

}  // namespace larder
