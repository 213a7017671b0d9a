#include <algorithm>
#include <set>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/tensor/safetensors.h"

namespace larder {
namespace {

constexpr size_t kMaxHeader = 100'000'000;

int64_t byte_size(const TensorToWrite& tensor) {
  return checked_mul(Shape(tensor.shape).count(), static_cast<int64_t>(dtype_size(tensor.dtype)));
}

void check_names(const std::string& file, std::span<const TensorToWrite> tensors) {
  std::set<std::string_view> names;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.name == "__metadata__") fail(file, ": no tensor can bear the name __metadata__");
    if (!names.insert(tensor.name).second)
      fail(file, ": tensor ", in_quotes(tensor.name), " is given twice");
  }
}

// The length in 8 bytes, then the JSON. Written by hand rather than as one document: an ordered
// JSON object looks every key up in all those before it.
std::string header_text(const std::string& file, std::span<const TensorToWrite> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  try {
    if (!metadata.empty()) text += str("\"__metadata__\":", nlohmann::json(metadata).dump());
    int64_t at = 0;
    for (const TensorToWrite& tensor : tensors) {
      const int64_t end = checked_add(at, byte_size(tensor));
      text += str(text.size() > 1 ? "," : "", nlohmann::json(tensor.name).dump(), ":{\"dtype\":\"",
                  safetensors_dtype_name(tensor.dtype), "\",\"shape\":[", join(tensor.shape, ","),
                  "],\"data_offsets\":[", at, ",", end, "]}");
      at = end;
    }
  } catch (const nlohmann::json::exception&) {
    fail(file, ": a tensor's name or the metadata is not valid UTF-8");
  }
  text += "}";
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  if (text.size() > kMaxHeader)
    fail(file, ": a header of ", text.size(), " bytes is above the limit of ", kMaxHeader);
  std::string length(8, '\0');
  for (size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<char>(static_cast<unsigned char>(text.size() >> (8 * i)));
  return length + text;
}

}  // namespace

SafetensorsStream::SafetensorsStream(const std::filesystem::path& path,
                                     std::span<const TensorToWrite> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : name_(path.string()), file_(path) {
  check_names(name_, tensors);
  header_ = header_text(name_, tensors, metadata);
  for (const TensorToWrite& tensor : tensors) left_ += byte_size(tensor);
  file_.write(header_.data(), header_.size());
}

void SafetensorsStream::write(const void* data, size_t bytes) {
  left_ -= static_cast<int64_t>(bytes);
  LARDER_ASSERT(left_ >= 0);
  file_.write(data, bytes);
}

void SafetensorsStream::commit() {
  LARDER_ASSERT(left_ == 0);
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorToWrite> order = tensors;
  std::ranges::stable_sort(order, [](const TensorToWrite& a, const TensorToWrite& b) {
    return dtype_size(a.dtype) > dtype_size(b.dtype);
  });
  SafetensorsStream stream(path, order, metadata);
  for (const TensorToWrite& tensor : order)
    stream.write(tensor.data, static_cast<size_t>(byte_size(tensor)));
  stream.commit();
}

}  // namespace larder
