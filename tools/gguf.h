// Reading GGUF version 3, the container of llama.cpp: typed metadata, then the names, shapes and
// places of tensors, then their bytes. Little-endian throughout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "larder/base/file.h"

namespace larder::tools {

// Element types that larder can turn into numbers. Values are the format's own; kQ40 is its Q4_0.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ40 = 2, kQ41 = 3, kQ80 = 8, kBF16 = 30 };

// Elements of one block of a row, and the bytes it takes.
struct GgufBlock {
  int64_t elements, bytes;
};
GgufBlock gguf_block(GgufType type);
std::string_view gguf_type_name(GgufType type);

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  // outermost first, as everywhere in larder; the file has it reversed
  const std::byte* data = nullptr;  // in the mapping, contiguous rows of blocks
  size_t bytes = 0;
};

using GgufIntegers = std::vector<int64_t>;
using GgufNumbers = std::vector<double>;
using GgufStrings = std::vector<std::string_view>;
// An unsigned value past the signed range is refused by the reader.
using GgufValue =
    std::variant<bool, int64_t, double, std::string_view, GgufIntegers, GgufNumbers, GgufStrings>;

// One mapped file. Construction checks every count, length, type and offset before it is used, and
// refuses a hostile file with one line that names it. Strings and tensors point into the mapping
// and are valid while this lives. Immutable, so any thread may read it.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }  // the path, for error lines
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view tensor) const;  // nullptr when absent
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }

  // A metadata value: nullopt or nullptr where the key is absent; throws Error that names the key
  // where it has another type.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // integers too
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  const GgufIntegers* integers(std::string_view key) const;
  const GgufNumbers* numbers(std::string_view key) const;
  const GgufStrings* strings(std::string_view key) const;

 private:
  template <class T>
  const T* get(std::string_view key, std::string_view expected) const;

  std::string name_;
  MappedFile file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace larder::tools
