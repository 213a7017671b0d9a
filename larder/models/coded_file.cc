#include "larder/models/coded_file.h"

#include <chrono>

#include "larder/base/checksum.h"
#include "larder/base/error.h"
#include "larder/models/origin.h"

namespace larder {
namespace {

constexpr const char* kVersion = "1";

// The reason why a file that can be read does not serve.
std::string mismatch(const SafetensorsFile& file, const std::string& origin,
                     const std::vector<NamedCodes>& wanted) {
  const auto value = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  if (value("larder_weights") != kVersion) return "it is not of this version's layout";
  if (value("origin") != origin) return "it was made from other weights";
  uint64_t sum = 0;
  for (const NamedCodes& codes : wanted) {
    const StoredTensor* tensor = file.find(codes.name);
    const bool fits = tensor != nullptr && tensor->dtype == DType::kU8 &&
                      tensor->bytes == codes.bytes &&
                      reinterpret_cast<uintptr_t>(tensor->data) % kAlignment == 0;
    if (!fits) return str("it has no fitting ", in_quotes(codes.name));
    sum = checksum64({tensor->data, tensor->bytes}, sum);
  }
  return value("checksum") == hex(sum) ? "" : "it is damaged: its checksum differs";
}

}  // namespace

std::string codes_origin(const SafetensorsFolder& files, WeightFormat format) {
  std::string text = str(weights_fingerprint(files), " ", weight_format_name(format), " ",
                         kCodeGroup, " ", kCodePanel);
  for (const SafetensorsFile& file : files.files()) {
    const auto written = std::filesystem::last_write_time(file.path()).time_since_epoch();
    text += str(" ", file.path().filename().string(), " ", std::filesystem::file_size(file.path()),
                " ", std::chrono::duration_cast<std::chrono::nanoseconds>(written).count());
  }
  return hex(checksum64(std::as_bytes(std::span(text))));
}

std::filesystem::path codes_path(const std::filesystem::path& folder, WeightFormat format) {
  return folder / str("larder-weights-", weight_format_name(format), ".safetensors");
}

std::unique_ptr<SafetensorsFile> open_codes(const std::filesystem::path& path,
                                            const std::string& origin,
                                            const std::vector<NamedCodes>& wanted,
                                            std::string& why) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return nullptr;
  try {
    auto file = std::make_unique<SafetensorsFile>(path);
    why = mismatch(*file, origin, wanted);
    return why.empty() ? std::move(file) : nullptr;
  } catch (const Error& error) {
    why = error.what();
    return nullptr;
  }
}

void write_codes(const std::filesystem::path& path, const std::string& origin,
                 const std::vector<NamedCodes>& codes) {
  std::vector<TensorToWrite> tensors;
  uint64_t sum = 0;
  for (const NamedCodes& one : codes) {
    tensors.push_back({one.name, DType::kU8, {static_cast<int64_t>(one.bytes)}, one.data});
    sum = checksum64({one.data, one.bytes}, sum);
  }
  write_safetensors(path, tensors,
                    {{"larder_weights", kVersion}, {"origin", origin}, {"checksum", hex(sum)}});
}

}  // namespace larder
