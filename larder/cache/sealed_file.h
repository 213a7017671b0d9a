// Files of keys and values that are taken whole or not at all: safetensors with a version, a
// checksum of every tensor, and the model that they come from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "larder/base/error.h"
#include "larder/tensor/safetensors.h"

namespace larder {

// Where keys and values come from. They fit only where all of it is equal.
struct CacheOrigin {
  std::string config;   // config.json as JSON, without keys that change no number
  std::string weights;  // fingerprint of the weights
  std::string dtype;    // what the model rounds activations to
};

// One kind of such a file.
struct SealedFormat {
  const char* what;     // "cache file": how messages call it
  const char* name;     // in the file
  const char* version;  // what this larder writes and reads
  const char* maker;    // the flag that makes one
};

// An open one: its version and checksums are right.
class SealedFile {
 public:
  // Refuses a damaged file, one of another version, and one of another kind.
  SealedFile(const std::filesystem::path& path, const SealedFormat& format);

  // In the order of the file, the checksums last.
  const SafetensorsFile& file() const { return file_; }
  const std::string& name() const { return name_; }
  const std::string& meta(const std::string& key) const;
  // Refuses another model, with what differs.
  void check_origin(const CacheOrigin& origin) const;
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(format_.what, " ", name_, ": ", parts...);
  }

 private:
  void check_version() const;
  void check_sums() const;

  SealedFormat format_;
  std::string name_;
  SafetensorsFile file_;
};

// Writes one. Atomic: nothing is at `path` before commit(), and an old file there stays as it was
// until then.
class SealedStream {
 public:
  // `tensors` in the order of their bytes, wide types first; their data is not read.
  SealedStream(const std::filesystem::path& path, const SealedFormat& format,
               std::vector<TensorToWrite> tensors, const CacheOrigin& origin,
               std::map<std::string, std::string> metadata);
  // The next one.
  void write(const TensorToWrite& tensor);
  void commit();

 private:
  std::vector<TensorToWrite> tensors_;  // checksums last
  SafetensorsStream stream_;
  std::vector<uint64_t> checksums_;  // the header's first
};

}  // namespace larder
