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

void check_names(const std::string& file, const std::vector<TensorToWrite>& tensors) {
  std::set<std::string_view> names;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.name == "__metadata__") fail(file, ": no tensor can bear the name __metadata__");
    if (!names.insert(tensor.name).second)
      fail(file, ": tensor ", in_quotes(tensor.name), " is given twice");
  }
}

// Written by hand rather than as one document: an ordered JSON object looks every key up in all
// those before it.
std::string header_text(const std::string& file, const std::vector<const TensorToWrite*>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  try {
    if (!metadata.empty()) text += str("\"__metadata__\":", nlohmann::json(metadata).dump());
    int64_t at = 0;
    for (const TensorToWrite* tensor : tensors) {
      const int64_t end = checked_add(at, byte_size(*tensor));
      text += str(text.size() > 1 ? "," : "", nlohmann::json(tensor->name).dump(), ":{\"dtype\":\"",
                  safetensors_dtype_name(tensor->dtype), "\",\"shape\":[", join(tensor->shape, ","),
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
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_names(path.string(), tensors);
  std::vector<const TensorToWrite*> order;
  order.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, [](const TensorToWrite* a, const TensorToWrite* b) {
    return dtype_size(a->dtype) > dtype_size(b->dtype);
  });
  const std::string header = header_text(path.string(), order, metadata);
  std::array<unsigned char, 8> length{};
  for (size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  AtomicFile file(path);
  file.write(length.data(), length.size());
  file.write(header.data(), header.size());
  for (const TensorToWrite* tensor : order)
    file.write(tensor->data, static_cast<size_t>(byte_size(*tensor)));
  file.commit();
}

}  // namespace larder
