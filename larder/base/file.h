// Files: a read-only mapping, whole-file reads, and a write that is never half done.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace larder {

// A read-only memory mapping of a regular file. Move-only; the bytes are valid while it lives. An
// empty file maps to an empty span. Throws Error(kIo) that names the path and the system's reason.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Gives the memory of whole pages within `bytes`, which lie in a MappedFile, back to the system.
// They are read from the file again when they are next looked at.
void forget_pages(std::span<const std::byte> bytes) noexcept;

// The whole file as a string. Refuses directories, and files above `limit` bytes.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

// Writes through a temporary file beside `path`: write, flush to disk, rename. On an error the
// temporary file is removed and an old file at `path` is as it was.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  // removes the temporary file unless commit() was reached
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, size_t bytes);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

}  // namespace larder
