// Reading and writing safetensors: one file, or several by model.safetensors.index.json.
// Format: 8 bytes little-endian header length N, N bytes of JSON, then the data; offsets count from
// the data's start.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/base/file.h"
#include "larder/tensor/tensor.h"

namespace larder {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;       // any rank; rank 0 is a scalar
  const std::byte* data = nullptr;  // in the mapping, at any alignment
  size_t bytes = 0;

  // Throws for a rank above kMaxRank. The mapping is read-only: the view must not be written
  // through.
  TensorView view() const;
};

// One mapped file. Construction reads and checks the whole header and nothing else; every malformed
// file is refused with one line that names the file, the tensor and the fault (cases 32, 33).
// Tensors are valid while this lives.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in order of offset
  const StoredTensor* find(std::string_view name) const;                 // nullptr when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }
  // The length and the JSON in front of the data.
  std::span<const std::byte> header() const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

// All weights of a model folder: model.safetensors, or the files that model.safetensors.index.json
// names (where both are there, the single file wins, as in transformers). Missing files are listed
// all at once; a name in two files, a tensor that the index places wrongly, or a path that leaves
// the folder is refused (cases 34).
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const StoredTensor* find(std::string_view name) const;
  std::vector<const StoredTensor*> tensors() const;  // sorted by name
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const StoredTensor*, std::less<>> by_name_;
};

// A tensor to write: contiguous bytes that must outlive the call.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

// Writes a file piece by piece, through a temporary file: nothing is at `path` before commit(). The
// tensors' `data` is not read; their bytes follow in the order given. The header is padded so that
// data starts at a multiple of 64.
class SafetensorsStream {
 public:
  SafetensorsStream(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                    const std::map<std::string, std::string>& metadata);
  std::span<const std::byte> header() const { return std::as_bytes(std::span(header_)); }
  void write(const void* data, size_t bytes);
  void commit();  // needs: all bytes of all tensors were written

 private:
  std::string name_, header_;
  int64_t left_ = 0;
  AtomicFile file_;
};

// Writes through a temporary file, synced, renamed: the old file stays whole on any error. Tensors
// are written in the order given, largest alignment first as the format asks; the header is padded
// so that data starts at a multiple of 64.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace larder
